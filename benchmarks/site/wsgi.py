"""The variant behind gunicorn: it is loaded before the workers fork, tables and all."""

from __future__ import annotations

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"

from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db import connections

application = get_wsgi_application()
call_command("migrate", run_syncdb=True, verbosity=0)
connections.close_all()

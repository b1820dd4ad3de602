"""The shop's settings for the demo: a server without DEBUG, and what the story needs."""

from __future__ import annotations

import os

from example_project.demo.apps import GUARD, NAIVE
from example_project.demo.pauses import FOLDER
from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS as SHOP_APPS
from example_project.settings import MIDDLEWARE as SHOP_MIDDLEWARE

DEBUG = False
SECRET_KEY = os.environ["EXAMPLE_SECRET_KEY"]
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
SEED_KNOWN_PASSWORDS = True
INSTALLED_APPS = [*SHOP_APPS, "example_project.demo"]
MIDDLEWARE = [*SHOP_MIDDLEWARE, "example_project.demo.pauses.Arrival"]
if os.environ.get(GUARD) == NAIVE:
    MIDDLEWARE.insert(-1, "example_project.demo.naive.LookUpFirst")
    CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "naive": {
            "BACKEND": "django.core.cache.backends.filebased.FileBasedCache",
            "LOCATION": os.environ[FOLDER] + "/naive",
        },
    }
ROOT_URLCONF = "example_project.demo.urls"

# Basic authentication checks the password in each request. A good hash takes longer than everything
# that the story is about, so the demo takes a bad one: never do this elsewhere.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Without DEBUG, Django writes an error to nobody but the admins' mailbox.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler", "level": "ERROR"}},
    "loggers": {name: {"handlers": ["console"]} for name in ("django", "django_idempotency")},
}

# A broker that waits for hours is right for a shop, and too long for a story.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    # Who is killed while it looks for such messages keeps the others from it for so long.
    "unacked_mutex_expire": 2,
}
EMAIL_BACKEND = "example_project.demo.tasks_worker.MailServer"

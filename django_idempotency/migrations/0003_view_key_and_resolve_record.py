"""The permissions to see scopes and keys, and to decide about records."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("django_idempotency", "0002_view_result")]

    operations = [
        migrations.AlterModelOptions(
            name="idempotencyrecord",
            options={
                "permissions": (
                    ("view_result", "Can view stored results"),
                    ("view_key", "Can view scopes and keys"),
                    ("resolve_record", "Can release, complete and expire records"),
                ),
                "verbose_name": "idempotency record",
                "verbose_name_plural": "idempotency records",
            },
        ),
    ]

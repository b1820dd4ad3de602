"""The permission to see stored results."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("django_idempotency", "0001_initial")]

    operations = [
        migrations.AlterModelOptions(
            name="idempotencyrecord",
            options={
                "permissions": (("view_result", "Can view stored results"),),
                "verbose_name": "idempotency record",
                "verbose_name_plural": "idempotency records",
            },
        ),
    ]

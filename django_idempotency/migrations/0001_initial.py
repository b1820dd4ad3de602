"""The table of the database store, and the permissions of its admin."""

from __future__ import annotations

from django.db import migrations, models

from django_idempotency import fields


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="IdempotencyRecord",
            fields=[
                (
                    "id",
                    fields.AnyUUIDField(
                        editable=False, primary_key=True, serialize=False, verbose_name="record id"
                    ),
                ),
                ("scope", models.CharField(max_length=255, verbose_name="scope")),
                ("key", models.CharField(max_length=255, verbose_name="idempotency key")),
                (
                    "operation",
                    models.CharField(blank=True, max_length=255, verbose_name="operation"),
                ),
                ("fingerprint", models.BinaryField(null=True, verbose_name="fingerprint")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("IN_PROGRESS", "in progress"),
                            ("COMPLETED", "completed"),
                            ("FAILED", "failed"),
                            ("RELEASED", "released"),
                        ],
                        max_length=11,
                        verbose_name="state",
                    ),
                ),
                ("epoch", models.BigIntegerField(verbose_name="epoch")),
                ("token", fields.AnyUUIDField(verbose_name="token")),
                ("lease_until", models.DateTimeField(null=True, verbose_name="lease until")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("updated_at", models.DateTimeField(verbose_name="updated at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("attempts", models.IntegerField(default=1, verbose_name="attempts")),
                ("result", models.BinaryField(null=True, verbose_name="result")),
                ("error", models.CharField(blank=True, max_length=255, verbose_name="error")),
            ],
            options={
                "verbose_name": "idempotency record",
                "verbose_name_plural": "idempotency records",
                "db_table": "idempotency_record",
                "indexes": [models.Index(fields=["expires_at"], name="idempotency_expires_at")],
                "permissions": (
                    ("view_result", "Can view stored results"),
                    ("view_key", "Can view scopes and keys"),
                    ("resolve_record", "Can release, complete, expire and resume records"),
                ),
            },
        ),
    ]

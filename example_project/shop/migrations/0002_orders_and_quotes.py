"""Orders of the checkout, and quotes."""

from __future__ import annotations

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("shop", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "product",
                    models.CharField(choices=[("coffee", "Coffee"), ("tea", "Tea")], max_length=20),
                ),
                ("quantity", models.PositiveSmallIntegerField()),
                ("note", models.CharField(blank=True, max_length=100)),
                ("total", models.BigIntegerField()),
                ("paid", models.BigIntegerField(default=0)),
                ("created", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ["-created"],
            },
        ),
        migrations.CreateModel(
            name="Quote",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "sell",
                    models.CharField(choices=[("EUR", "Euro"), ("USD", "US dollar")], max_length=3),
                ),
                (
                    "buy",
                    models.CharField(choices=[("EUR", "Euro"), ("USD", "US dollar")], max_length=3),
                ),
                ("amount", models.BigIntegerField()),
                ("rate", models.DecimalField(decimal_places=6, max_digits=12)),
                ("created", models.DateTimeField(auto_now_add=True)),
                (
                    "owner",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="quotes",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["-pk"],
            },
        ),
    ]

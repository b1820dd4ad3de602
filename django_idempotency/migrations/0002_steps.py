"""The journal of a record: what its steps have noted."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_idempotency", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="idempotencyrecord",
            name="steps",
            field=models.BinaryField(null=True, verbose_name="steps"),
        ),
    ]

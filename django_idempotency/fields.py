"""The UUIDs of a record, on databases that differ in what they take for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    _UUIDField = models.UUIDField[UUID, UUID]
else:
    _UUIDField = models.UUIDField


class AnyUUIDField(_UUIDField):
    """
    A UUID of any version.

    On MariaDB it is text: the UUID type there refuses one in 64 of version 8, those whose ninth
    byte is 0x80.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        """See `Field.db_type`."""
        if connection.vendor == "mysql":
            return "char(32) CHARACTER SET ascii COLLATE ascii_bin"
        return super().db_type(connection)

    def get_db_prep_value(
        self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        """See `Field.get_db_prep_value`."""
        if connection.vendor == "mysql" and value is not None:
            return self.to_python(value).hex
        return super().get_db_prep_value(value, connection, prepared)

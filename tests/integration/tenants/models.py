"""The tenants of the project, in `public`."""

from __future__ import annotations

from django_tenants.models import DomainMixin, TenantMixin


class Tenant(TenantMixin):
    """A tenant, whose schema is made and migrated when it is saved."""

    class Meta:
        app_label = "tenants"


class Domain(DomainMixin):
    """The host name of a tenant."""

    class Meta:
        app_label = "tenants"

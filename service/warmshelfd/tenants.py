"""Where the daemon keeps what belongs to a tenant: beside what belongs to none, each in places of its own.

Knows settings only; opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from warmshelf.errors import InvalidConfig
from warmshelfd.registry.redis_place import is_redis
from warmshelfd.settings import Settings
from warmshelfd.tenant_settings import TenantSettings, check_shares

_WITHIN = "tenants"  # the directory, or the part of a store's keys, that has one for each tenant


def settings_of(settings: Settings, tenant: TenantSettings) -> Settings:
    """Return the settings with which a tenant is served: its own places, sources and artifacts.

    Raises:
        InvalidConfig: it would have sources that the daemon has not.
    """
    name = tenant.name
    return settings.model_copy(
        update={
            "registry": settings.registry if is_redis(settings.registry) else _beside(settings.registry, name),
            "registry_copy": _beside(settings.registry_copy, name),
            "spool": f"{settings.spool}/{_WITHIN}/{name}",
            "spool_staging": f"{settings.spool_staging}/{_WITHIN}/{name}",
            "allow_source": _sources_of(settings.allow_source, tenant),
            "declare": tenant.declare,
            "preload": tenant.preload,
        }
    )


def refuse_shares(settings: Settings, budget_bytes: int) -> None:
    """Refuse tenants whose shares a budget cannot hold.

    Raises:
        InvalidConfig: it cannot.
    """
    if why := check_shares(settings.tenant, budget_bytes):
        raise InvalidConfig(why, option="tenant", budget_bytes=budget_bytes)


def _beside(registry: str, name: str) -> str:
    """Return the registry's file of a tenant: ``X.sqlite`` has it in ``X.tenants/NAME/``."""
    return f"{os.path.splitext(registry)[0]}.{_WITHIN}/{name}/registry.sqlite" if registry else ""


def _sources_of(allowed: Sequence[str], tenant: TenantSettings) -> tuple[str, ...]:
    if tenant.allow_source is None:
        return tuple(allowed)
    for prefix in tenant.allow_source:
        if not any(_is_within(prefix, one) for one in allowed):
            raise InvalidConfig(
                f"tenant {tenant.name}: {prefix!r} is within none of the daemon's allow_source", option="tenant"
            )
    return tenant.allow_source


def _is_within(prefix: str, of: str) -> bool:
    """Say whether all under a prefix is under another. By its text: what only looks different is refused."""
    inner, outer = (text.removeprefix("file://").rstrip("/") + "/" for text in (prefix, of))
    return inner.startswith(outer) and not {".", ".."}.intersection(inner.split("/"))

"""Tenants, as the operator says: their names, what memory they have, which sources they may name.

Knows no call, no caller, and no place where anything of theirs is kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, model_validator

from warmshelf.segment import is_segment_id
from warmshelfd.options import Share, parse_share
from warmshelfd.setting_types import check_preload, check_source

NOBODY = ""
"""In place of a tenant's name: what belongs to none."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def is_tenant_name(name: str) -> bool:
    """Say whether a tenant may have this name, which is a directory's and part of keys; no segment is called so."""
    return _NAME.fullmatch(name) is not None and not is_segment_id(name)


def _check_name(name: str) -> str:
    if not is_tenant_name(name):
        raise ValueError("a tenant's name has up to 63 small letters, digits and -, first and last no -")
    return name


class TenantSettings(BaseModel):
    """One tenant."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)

    name: Annotated[str, AfterValidator(_check_name)]
    """Up to 63 small letters, digits and `-`, such as a Kubernetes namespace."""
    share: Annotated[Share, BeforeValidator(parse_share)] = Share()
    """What it can always have of the budget: bytes, or a part such as `25%`. Default: nothing."""
    quota: Annotated[Share, BeforeValidator(parse_share)] = Share(percent=100)
    """What it may have at most, written alike; above its share only while others do not use theirs. Default: `100%`."""
    allow_source: tuple[Annotated[str, AfterValidator(check_source)], ...] | None = None
    """Prefixes that its sources may lie under, each within one of the daemon's. Default: all of the daemon's."""
    declare: str | None = None
    """TOML file of its declared artifacts. Default: none."""
    preload: tuple[Annotated[str, AfterValidator(check_preload)], ...] = ()
    """Its artifacts to make resident at start. Default: none."""

    def most_bytes(self, budget_bytes: int) -> int:
        """Return what it may have of a budget."""
        return min(self.quota.of(budget_bytes), budget_bytes)

    @model_validator(mode="after")
    def _check_together(self) -> TenantSettings:
        quota, share = self.quota, self.share
        if (quota.percent or 101) < share.percent or (not quota.percent and quota.size_bytes < share.size_bytes):
            raise ValueError(f"tenant {self.name}: its quota is below its share")
        if not quota.percent and not quota.size_bytes:
            raise ValueError(f"tenant {self.name}: with a quota of 0 it could have nothing")
        return self


def check_tenants(tenants: Sequence[TenantSettings], named: Collection[str | None]) -> None:
    """Check tenants against each other, and the names that identities have.

    Raises:
        ValueError: two are one, or there is no such tenant.
    """
    names = [tenant.name for tenant in tenants]
    if len(set(names)) < len(names):
        raise ValueError("two tenants have the same name")
    for name in named:
        if name not in names:
            raise ValueError(f"an identity is of tenant {name!r}, and there is no [[tenant]] of that name")


def shares_bytes(tenants: Sequence[TenantSettings], budget_bytes: int) -> int:
    """Return what all shares together take of a budget."""
    return sum(tenant.share.of(budget_bytes) for tenant in tenants)


def check_shares(tenants: Sequence[TenantSettings], budget_bytes: int) -> str:
    """Say why tenants cannot share such a budget; "" if they can."""
    sum_bytes = shares_bytes(tenants, budget_bytes)
    if sum_bytes > budget_bytes:
        return f"the shares of all tenants take {sum_bytes} bytes, more than the budget of {budget_bytes}"
    for tenant in tenants:
        if tenant.most_bytes(budget_bytes) < tenant.share.of(budget_bytes):
            return f"tenant {tenant.name}: its quota is below its share with a budget of {budget_bytes} bytes"
    return ""

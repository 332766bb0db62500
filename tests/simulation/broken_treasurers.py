"""Treasurers and allowances that break one rule each. The simulation catches every one of them."""

from __future__ import annotations

from proto.ipc.operations import Mark, Room
from shardd.changes.allowance import Allowance
from shardd.changes.treasurer import Account, Treasurer


class ObeysLateOrders(Allowance):
    """Rule 1: obeys an order that a later one has overtaken."""

    def newer(self, at: Mark) -> bool:
        return True


class BelievesOldReports(Treasurer):
    """Rule 2: takes a report for the present limit although a later order is on its way."""

    def _report(self, account: Account, at: Mark, limit: Room) -> bool:
        if at[:3] == self.epoch and at != self._last(account) and account.booked is not None:
            account.booked = limit
        return super()._report(account, at, limit)


class ForgetsTheDead(Treasurer):
    """Rule 3: a shard that has died holds nothing until its successor reports."""

    def _succeeded(self, account: Account, life: int | str) -> None:
        super()._succeeded(account, life)
        if account.booked is not None:
            account.booked = Room(0, 0)


class GrantsEarly(Treasurer):
    """Rule 4: takes a shard that has not reported for one that holds nothing."""

    @property
    def complete(self) -> bool:
        for account in self.accounts:
            account.booked = account.booked or Room(0, 0)
        return True


class RefusesEarly(Treasurer):
    """Rule 5: refuses before the others have given back."""

    def _all_gave_back(self, asker: int, since_s: float) -> bool:
        return True

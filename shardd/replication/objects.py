"""Objects: carries the requests of the replication protocol out on a store. Blocks; each request is one attempt.

    request       objects                                               answer
    Look          terms/, alive/<newest>, heads of manifests/           Seen
    CreateTerm    terms/<term>                                          DONE or TAKEN
    Renew         alive/<term>                                          DONE
    CreatePart    log/<part>                                            DONE or TAKEN
    ReadPart      log/<part>, and what is behind it                     Part, ABSENT or DAMAGED

An error of the store is answered UNKNOWN, whatever it was: the protocol asks again. Nothing is decided here. What is
found damaged is kept in `damage` until it is read in order.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import msgspec

from proto.format.buffer import Buffer
from shardd.leaders import Leader, followed_by
from shardd.replication import parts
from shardd.replication.attach import Mismatch, Settings, Term, TermError, read_service, read_term
from shardd.replication.damage import Damage
from shardd.replication.log_reader import Frames
from shardd.replication.manifests import Head, Heads
from shardd.replication.messages import (
    Answer,
    CreatePart,
    CreateTerm,
    Kind,
    Look,
    Part,
    Position,
    ReadPart,
    Renew,
    Request,
    Result,
    Seen,
)
from shardd.replication.names import SERVICE, ShardNames, number_of
from shardd.replication.outage import Outage
from shardd.replication.parts import PartError
from shardd.replication.seal import Sealed
from shardd.replication.store import Absent, Exists, Store, StoreError, Unsealed

_KINDS = {Kind.FRAMES: parts.FRAMES, Kind.FENCE: parts.FENCE, Kind.END: parts.END}
_NAMES = {number: kind for kind, number in _KINDS.items()}


KEPT = 3
UNKNOWN = Settings()
NO_TERM = Term(0, "", "", 0)


class Objects:
    """One shard's objects, for one process."""

    def __init__(self, store: Store, index: int, own: Term = NO_TERM, now_ms: Callable[[], int] = int) -> None:
        """`own` has what all terms of this process have; a process that only reads has none."""
        self.store = store
        self.own = own
        self.names = ShardNames(index)
        self.heads = Heads(store, self.names)
        self._terms: dict[int, Term] = {}
        """The newest term that was read."""
        self._replaced_part = 0
        """Parts up to this one are not needed: the last look showed a manifest that does without them."""
        self._now_ms = now_ms
        self._found: dict[int, memoryview] = {}
        """Frames of the parts that were read last, by number."""
        self._fetched: dict[int, Buffer] = {}
        """Parts that were fetched and are not read yet, by number."""
        self.frames_of: Callable[[Part], Frames] = _no_frames
        """The frames of a part that is to be created."""
        self.outage = Outage()
        self.damage = Damage(store.url)

    def carry(self, request: Request) -> Answer:
        try:
            answer = self._carry(request)
        except StoreError as error:
            self.outage.failed(error)
            return Result.UNKNOWN
        self.outage.answered()
        return answer

    def _carry(self, request: Request) -> Answer:
        match request:
            case Look(replaced):
                return self._look(replaced)
            case CreateTerm(term):
                return self._create(self.names.term(term), msgspec.json.encode(self._made(term)))
            case Renew(term, counter):
                self.store.put(self.names.alive(term), b"%d" % counter)
                return Result.DONE
            case CreatePart(part):
                return self._create(self.names.part(part.number), self._encoded(part))
            case ReadPart(number, ends):
                return self._read(number, ends)
        raise AssertionError(request)

    def _made(self, term: int) -> Term:
        now_ms, member = self._now_ms(), self.own.member
        leaders: list[Leader] = []
        if member:
            replaced = self._terms.get(term - 1)
            earlier = [Leader(0, member)] if term == 1 else replaced.leaders if replaced else []
            leaders = followed_by(earlier, member, now_ms)
        return msgspec.structs.replace(self.own, term=term, made_ms=now_ms, leaders=leaders)

    def _create(self, name: str, data: Buffer) -> Result:
        try:
            self.store.create(name, data)
        except Exists:
            return Result.TAKEN
        return Result.DONE

    def _encoded(self, part: Part) -> bytes:
        """The same bytes for the same part, since frames in a log do not change."""
        nonce = bytes.fromhex(part.nonce)
        header = parts.Part(part.number, _KINDS[part.kind], part.term, nonce, part.first_no, part.last_no)
        if part.kind is not Kind.FRAMES:
            return parts.encode(header)
        frames = self.frames_of(part)
        return parts.encode(header._replace(first_ms=frames.first_ms, last_ms=frames.last_ms), frames.data)

    def _read(self, number: int, ends: bool) -> Part | Result:
        name = self.names.part(number)
        try:
            for each in list(self._fetched):
                if each < number:  # a restored shard does without them
                    self._fetched.pop(each, None)
            data = self._fetched.pop(number, None)
            header, frames = parts.decode(self.store.get(name) if data is None else data, number)
        except Absent:
            if ends and (missing := self._missing_at(number)):
                self.damage.add(self.names.part(missing), "it is missing, and is needed")
                return Result.DAMAGED
            if ends:
                self.damage.mended(self.names.part(number - 1))
            return Result.ABSENT
        except (PartError, Unsealed) as error:
            self.damage.add(name, str(error))
            return Result.DAMAGED if number > self._replaced_part else Result.ABSENT
        self.damage.mended(name)
        kind = _NAMES[header.kind]
        part = Part(number, kind, header.term, header.nonce.hex(), header.first_no, header.last_no)
        # A read that was given up may end later, so one number is not enough.
        kept = list(self._found.items())[1 - KEPT :]
        self._found = {**dict(kept), number: frames}
        return part

    def fetch(self, number: int) -> bool:
        """Fetch a part that is to be read soon: reading it takes no request then. Returns whether it may be there."""
        try:
            self._fetched[number] = self.store.get(self.names.part(number))
        except Absent:
            return False
        except StoreError:
            pass  # reading it tells
        return True

    def restored(self, part: int) -> None:
        """The shard was restored from a manifest that does without the parts up to this one."""
        if isinstance(self.store, Sealed):
            self.store.forget(self.names.log, part)

    def _missing_at(self, number: int) -> int:
        """Which part is missing where this one is absent; 0 if the log ends before it. It is missing if there are later
        ones and no manifest does without it; if the one before, which was read, is not there either, the bucket is an
        older one. Raises `StoreError`."""
        later = self._first_behind(number)
        head = self.newest_head()
        from_part = 1 if head is None else head.first_part
        if later and from_part <= number:
            return 0 if self._first_behind(number - 1) == number else number  # created meanwhile
        if not later and from_part < number:
            return 0 if self._first_behind(number - 2) else number - 1
        return 0

    def _first_behind(self, number: int) -> int:
        """The first part behind this number; 0 if there is none. Raises `StoreError`."""
        listed = self.store.list(self.names.log, self.names.part(number))
        return next((found for each in listed if (found := number_of(each.name))), 0)

    def frames(self, part: Part) -> memoryview:
        """Frames of a part that was read just now."""
        return self._found[part.number]

    def _look(self, replaced: int) -> Seen:
        term = self.newest_term()
        manifest, unread = self._newest_manifest()
        self._replaced_part = manifest.part
        if term is None:
            return Seen(0, "", None, manifest, None, unread)
        alive, before = self.alive(term.term), self.alive(replaced) if replaced else None
        return Seen(term.term, term.nonce, alive, manifest, before, unread, term.ttl_ms / 1000)

    def alive(self, term: int) -> int | None:
        """The sign of life of a term, if there is one. Raises `StoreError`."""
        try:
            return int(bytes(self.store.get(self.names.alive(term))))
        except (Absent, Unsealed, ValueError):
            return None

    def newest_term(self) -> Term | None:
        """Raises `StoreError`."""
        known = max(self._terms, default=0)
        after = self.names.term(known - 1) if known else ""
        listed = [number for each in self.store.list(self.names.terms, after) if (number := number_of(each.name))]
        newest = max(listed, default=0)
        if not newest:
            return None
        if newest not in self._terms:
            self._terms = {newest: self._term(newest)}
        return self._terms[newest]

    def _term(self, number: int) -> Term:
        """A term; one that is damaged is that of an unknown machine, which is over as any other is."""
        name = self.names.term(number)
        try:
            found = read_term(self.store.get(name), number)
        except (TermError, Unsealed) as error:
            self.damage.add(name, str(error))
            return Term(number, f"damaged-{number}", "", 0)
        self.damage.mended(name)
        return found

    def has_later_term(self) -> bool:
        """Whether there is a later term than the one that was read last. Raises `StoreError`."""
        try:
            self.store.get(self.names.term(max(self._terms, default=0) + 1))
        except Absent:
            return False
        return True

    # Settings that all machines have alike

    def check_settings(self, own: Container[str]) -> None:
        """Compare the settings of the newest term with this machine's. A term of a process with one of the nonces
        `own` is over, and so is one that has ended: the next one may have others, behind its fence. Raises `Mismatch`,
        `StoreError`."""
        term = self.newest_term()
        known = UNKNOWN if term is None else Settings.of(term)
        if known == UNKNOWN:
            try:
                known = Settings.of(read_service(self.store))
            except Absent:
                pass  # a start makes it again
        difference = known.difference(Settings.of(self.own))
        if not difference or (term is not None and (term.nonce in own or self._has_ended(term.term))):
            return
        of = "service.json" if term is None else f"term {term.term} of {term.shown}"
        raise Mismatch(
            f"{self.store.url}: {of} {difference}. Give this machine the same. To change it for the service, stop all "
            "machines in order, which ends the term, and start one with the new value"
        )

    def _has_ended(self, term: int) -> bool:
        head = self.newest_head()
        listed = list(self.store.list(self.names.log, self.names.part(head.first_part - 1) if head else ""))
        number = number_of(listed[-1].name) if listed else None
        if number is None:
            return False
        try:
            last = parts.header(self.store.get_range(self.names.part(number), 0, parts.HEADER_SIZE), number)
        except (PartError, Absent, Unsealed):
            return False
        return last.kind == parts.END and last.term == term

    def note_settings(self) -> None:
        """Write this machine's settings into `service.json`, for machines that find no term. Raises `Mismatch`."""
        ours = Settings.of(self.own)
        try:
            found = read_service(self.store)
            wanted = msgspec.structs.replace(found, **ours._asdict())  # its shards were compared at the start
            if ours != UNKNOWN and wanted != found:
                self.store.put(SERVICE, msgspec.json.encode(wanted))
        except StoreError as error:
            self.outage.failed(error)  # each term has them; the next one tries again

    @property
    def holder(self) -> Term | None:
        """The newest term that was read, unless it was damaged."""
        term = self._terms.get(max(self._terms, default=0))
        return term if term is not None and term.shown else None

    def newest_head(self) -> Head | None:
        """Raises `StoreError`."""
        ordered = self.heads.ordered()
        self.damage.replace(self.names.manifests, self.heads.damaged.values())
        return ordered[-1][1] if ordered else None

    def _newest_manifest(self) -> tuple[Position, int]:
        """Where a restore from it continues, and the last part that a damaged manifest may reach further."""
        head = self.newest_head()
        position = Position() if head is None else Position(head.first_part - 1, head.frame_no)
        unread = max(self.heads.damaged, default=0)
        return position, unread if unread > position.part else 0


def _no_frames(part: Part) -> Frames:
    raise AssertionError(f"part {part.number} is to be created by a shard that is not open")

"""Seals: objects of a bucket that only machines with the key of TOPICS_BUCKET_KEY_FILE can have made, and read.

A sealed object is its content, in the clear (version 1) or encrypted (version 2), and behind that

    offset  size  field
         0     4  magic       b"TPCS"
         4     4  version     1 or 2
         8     8  key         which key: the begin of HMAC-SHA256(key, "topics bucket key")
        16    32  previous    `mac` of the object before, of parts and manifests; zeros if there is none
        48    32  mac         version 1: HMAC-SHA256(key, "topics bucket object 1", about, content)
                              version 2: 16 random bytes, the salt, and the 16 bytes of AES-256-GCM's tag

    about                     u32 length of name, name, previous
    version 2                 HMAC-SHA512(key, "topics bucket object 2", u32 length of name, name, salt) begins with
                              the key of the object, 32 bytes, and its nonce, 12; "topics bucket object 2" and about
                              are its associated data

So the object alone shows that its content was changed, or is under another name. The next part shows that a part
replaces another one under its own name. Numbers show what is missing (`objects`, `offline.replica`).
An earlier state of the whole bucket is valid: only a machine that has seen more can tell.

Each encryption has a key and a nonce of its own, also if the same content is sent again: AES-GCM is broken by two
contents under one pair. They would be equal if 16 random bytes came twice under one name. Both versions have the same
size and may be side by side. A range is read as a whole object: nothing is given out before all of it was checked.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from proto.format.buffer import Buffer
from shardd.replication.names import number_of
from shardd.replication.store import Absent, Entry, Store, Unsealed, Unsuitable, open_store
from shardd.storage.disk import RealDisk

MAGIC = b"TPCS"
CLEAR, ENCRYPTED = 1, 2
_SEAL = struct.Struct("<4sI8s32s32s")
SIZE = _SEAL.size
assert SIZE == 80
LEAST_KEY_BYTES = 32
NONE = bytes(32)
_SALT_SIZE = _TAG_SIZE = 16
_KEY_SIZE, _NONCE_SIZE = 32, 12
KEPT_SEALS, KEPT_CHUNKS = 1024, 10
_A = TypeVar("_A")


def read_key(path: str) -> bytes:
    """The key in a file, without white space around it. Raises `Unsuitable`."""
    try:
        key = bytes(RealDisk().read(Path(path).resolve())).strip()
    except OSError as error:
        raise Unsuitable(f"TOPICS_BUCKET_KEY_FILE={path}: {error.strerror}") from None
    if len(key) < LEAST_KEY_BYTES:
        raise Unsuitable(
            f"TOPICS_BUCKET_KEY_FILE={path}: the key has {len(key)} bytes, {LEAST_KEY_BYTES} are needed: "
            "`openssl rand -hex 32` makes one"
        )
    return key


def open_bucket(url: str, key_file: str, encrypt: bool = False) -> Store:
    """The store of a URL, sealed if there is a key, and what is written there is encrypted if wanted. Raises
    `Unsuitable`."""
    if not key_file:
        if encrypt:
            raise Unsuitable("TOPICS_BUCKET_ENCRYPT=true needs the key of TOPICS_BUCKET_KEY_FILE: set it to a file")
        return open_store(url)
    if encrypt:
        _ciphers()
    return Sealed(open_store(url), read_key(key_file), encrypt)


def _ciphers() -> Any:
    """Raises `Unsuitable`."""
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError as error:
        raise Unsuitable(
            f"encryption needs the package cryptography: install topics-server[encrypt] ({error})"
        ) from None
    return aead


def is_sealed(data: Buffer) -> bool:
    return len(data) >= SIZE and bytes(memoryview(data)[-SIZE:][:4]) == MAGIC


class Seal(NamedTuple):
    previous: bytes
    mac: bytes


class Sealed:
    """A store whose objects are sealed. A read raises `Unsealed` for one that is not, or not with this key."""

    def __init__(self, store: Store, key: bytes, encrypts: bool = False) -> None:
        self.url = store.url
        self.encrypts = encrypts
        self._store = store
        self._key = key
        self._key_id = hmac.digest(key, b"topics bucket key", "sha256")[:8]
        self._seals: OrderedDict[str, Seal] = OrderedDict()
        """Of parts and manifests that are in the bucket."""
        self._given: OrderedDict[str, bytes] = OrderedDict()
        """`previous` of those that were to be created, which is the same at each attempt."""
        self._chunks: OrderedDict[str, Buffer] = OrderedDict()
        self._lock = Lock()

    def create(self, name: str, data: Buffer) -> None:
        previous = self._given.get(name) or self._previous_of(name)
        sealed, mac = self._made(name, previous, data)
        self._keep(self._given, name, previous, KEPT_SEALS)
        self._store.create(name, sealed)
        self._keep(self._seals, name, Seal(previous, mac), KEPT_SEALS)

    def put(self, name: str, data: Buffer) -> None:
        self._store.put(name, self._made(name, NONE, data)[0])

    def get(self, name: str) -> Buffer:
        return self._content(name, self._store.get(name))

    def get_range(self, name: str, offset: int, size: int) -> Buffer:
        data = self._chunks.get(name)
        if data is None:
            data = self.get(name)
            if "/checkpoints/" in name:
                self._keep(self._chunks, name, data, KEPT_CHUNKS)
        return memoryview(data)[offset : offset + size]

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        return (Entry(each.name, max(each.size - SIZE, 0)) for each in self._store.list(prefix, after))

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def seal_of(self, name: str) -> Seal:
        """Raises as `get`."""
        if name not in self._seals:
            self.get(name)
        return self._seals[name]

    def forget(self, log: str, upto: int) -> None:
        """Forget the seals of the parts of a log up to this number, which a manifest was restored in place of. What was
        read or created there may be a fence in a gap of the log, which the part behind it does not follow."""
        with self._lock:
            for name in [each for each in self._seals if each.startswith(log) and (number_of(each) or 0) <= upto]:
                del self._seals[name]

    def _keep(self, kept: OrderedDict[str, _A], name: str, value: _A, most: int) -> None:
        with self._lock:
            kept[name] = value
            kept.move_to_end(name)
            while len(kept) > most:
                kept.popitem(last=False)

    def _made(self, name: str, previous: bytes, data: Buffer) -> tuple[bytes, bytes]:
        """The object for a content, and its `mac`."""
        version = ENCRYPTED if self.encrypts else CLEAR
        if self.encrypts:
            salt = secrets.token_bytes(_SALT_SIZE)
            key, nonce = self._key_of(name, salt)
            encrypted = memoryview(_ciphers().AESGCM(key).encrypt(nonce, data, _about(version, name, previous)))
            data, mac = encrypted[:-_TAG_SIZE], salt + bytes(encrypted[-_TAG_SIZE:])
        else:
            mac = self._mac(name, previous, data)
        return b"".join((data, _SEAL.pack(MAGIC, version, self._key_id, previous, mac))), mac

    def _key_of(self, name: str, salt: bytes) -> tuple[bytes, bytes]:
        """Key and nonce of one encryption."""
        made = hmac.digest(self._key, _label(ENCRYPTED, name) + salt, "sha512")
        return made[:_KEY_SIZE], made[_KEY_SIZE : _KEY_SIZE + _NONCE_SIZE]

    def _mac(self, name: str, previous: bytes, data: Buffer) -> bytes:
        mac = hmac.new(self._key, _about(CLEAR, name, previous), sha256)
        mac.update(data)
        return mac.digest()

    def _opened(self, version: int, name: str, seal: Seal, data: memoryview) -> Buffer | None:
        """The content of an object; None if the seal does not match. Raises ImportError."""
        if version == CLEAR:
            return data if hmac.compare_digest(seal.mac, self._mac(name, seal.previous, data)) else None
        from cryptography.exceptions import InvalidTag

        key, nonce = self._key_of(name, seal.mac[:_SALT_SIZE])
        whole = b"".join((data, seal.mac[_SALT_SIZE:]))
        try:
            content: bytes = _ciphers().AESGCM(key).decrypt(nonce, whole, _about(version, name, seal.previous))
        except InvalidTag:
            return None
        return content

    def _content(self, name: str, raw: Buffer) -> Buffer:
        data, where = memoryview(raw), f"{self.url}: {name}"
        if not is_sealed(data):
            raise Unsealed(
                f"{where} has no seal: it was made without a key, or replaced by a stranger. If the whole bucket has "
                "none, unset TOPICS_BUCKET_KEY_FILE, or use another prefix"
            )
        _, version, key_id, previous, mac = _SEAL.unpack(data[-SIZE:])
        if version not in (CLEAR, ENCRYPTED):
            raise Unsealed(
                f"{where}: seal version {version}, this release knows {CLEAR} and {ENCRYPTED}: use the release that "
                "wrote it"
            )
        if key_id != self._key_id:
            raise Unsealed(f"{where} is sealed with another key than that of TOPICS_BUCKET_KEY_FILE")
        seal = Seal(previous, mac)
        try:
            content = self._opened(version, name, seal, data[:-SIZE])
        except ImportError:
            raise Unsealed(f"{where} is encrypted: install topics-server[encrypt], which can read it") from None
        if content is None:
            raise Unsealed(f"{where} was changed, or was under another name: its seal does not match. Put it back")
        if "/log/" in name or "/manifests/" in name:
            self._keep(self._seals, name, seal, KEPT_SEALS)
            self._check_chain(name, seal)
        return content

    def _check_chain(self, name: str, seal: Seal) -> None:
        """Compare a part with those before and after it, as far as they were read."""
        number = number_of(name)
        if "/log/" not in name or number is None:
            return
        folder = name[:-20]
        before = self._seals.get(f"{folder}{number - 1:020d}")
        behind = self._seals.get(f"{folder}{number + 1:020d}")
        if (before and seal.previous not in (NONE, before.mac)) or (behind and behind.previous not in (NONE, seal.mac)):
            raise Unsealed(
                f"{self.url}: {name} does not follow the part before it: one of them, or the one behind, was replaced "
                "by another that this service had made. Put it back"
            )

    def _previous_of(self, name: str) -> bytes:
        """The `mac` of the object before one that is to be created; NONE if that one is gone or damaged, which must not
        stop what follows it. Raises `StoreError`."""
        number, folder, before = number_of(name), name[:-20], ""
        if number is not None and "/log/" in name:
            before = f"{folder}{number - 1:020d}"
        elif number is not None and "/manifests/" in name:
            before = max((each.name for each in self._store.list(folder) if each.name < name), default="")
        try:
            return self.seal_of(before).mac if before else NONE
        except (Absent, Unsealed):
            return NONE


def _label(version: int, name: str) -> bytes:
    encoded = name.encode()
    return b"topics bucket object %d%s%s" % (version, struct.pack("<I", len(encoded)), encoded)


def _about(version: int, name: str, previous: bytes) -> bytes:
    return _label(version, name) + previous

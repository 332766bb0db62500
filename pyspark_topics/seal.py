"""Seal: checks the seals of a bucket's objects with the key of the service, and decrypts them.

A service with TOPICS_BUCKET_KEY_FILE puts a seal behind the content of each object, 80 bytes:

    0 "TPCS", u32 version 1 (in the clear) or 2 (encrypted), 8 bytes: which key, 32 bytes: `mac` of the part before,
    zeros if there is none, 32 bytes `mac`: HMAC-SHA256 (version 1), or a salt and AES-GCM's tag, 16 bytes each

Without the key, content that is in the clear is read, and its seal is cut off. With it, an object without a seal is
refused. Only encrypted objects need the package cryptography.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import sha256
from pathlib import Path

from pyspark_topics.errors import CorruptFile, NotADataDirectory
from pyspark_topics.options import BadOption

SEAL = struct.Struct("<4sI8s32s32s")
SIZE = 80
assert SEAL.size == SIZE
MAGIC = b"TPCS"
CLEAR, ENCRYPTED = 1, 2
LEAST_KEY_BYTES = 32
NONE = bytes(32)
ENCRYPTED_REMEDY = (
    "it is encrypted: give the service's TOPICS_BUCKET_KEY_FILE as option bucketKeyFile, or in the environment"
)


class Unsealed(CorruptFile):
    """The object has not the seal that the key gives it."""


def clear(raw: bytes, shown: str) -> bytes:
    """An object without its seal, if it has one. Raises `NotADataDirectory` if it is encrypted."""
    if not raw[-SIZE:].startswith(MAGIC) or len(raw) < SIZE:
        return raw
    if SEAL.unpack(raw[-SIZE:])[1] != CLEAR:
        raise NotADataDirectory(f"{shown}: {ENCRYPTED_REMEDY}")
    return raw[:-SIZE]


def read_key(path: str) -> bytes:
    """The key in a file. Raises `BadOption`."""
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise BadOption(
            f"option bucketKeyFile, or TOPICS_BUCKET_KEY_FILE, = {path!r}: {error.strerror}; the file has to be on "
            "driver and executors"
        ) from None
    if len(key) < LEAST_KEY_BYTES:
        raise BadOption(f"option bucketKeyFile = {path!r}: the key has {len(key)} bytes, {LEAST_KEY_BYTES} are needed")
    return key


def opened(key: bytes, name: str, raw: bytes, shown: str) -> tuple[bytes, bytes, bytes]:
    """The content of an object, whose seal is checked, and `mac` of the part before and of this one. Raises `Unsealed`,
    `NotADataDirectory`."""
    if not raw[-SIZE:].startswith(MAGIC) or len(raw) < SIZE:
        raise Unsealed(
            f"{shown} has no seal: it was made without a key, or replaced by a stranger. If the whole bucket has none, "
            "leave bucketKeyFile out"
        )
    _, version, key_id, previous, mac = SEAL.unpack(raw[-SIZE:])
    if key_id != hmac.digest(key, b"topics bucket key", "sha256")[:8]:
        raise Unsealed(f"{shown} is sealed with another key than that of bucketKeyFile")
    if version not in (CLEAR, ENCRYPTED):
        raise Unsealed(f"{shown}: seal version {version}, known here: {CLEAR} and {ENCRYPTED}; update pyspark_topics")
    content = memoryview(raw)[:-SIZE]
    label = b"topics bucket object %d%s%s" % (version, struct.pack("<I", len(name.encode())), name.encode())
    if version == CLEAR:
        made = hmac.new(key, label + previous, sha256)
        made.update(content)
        data = bytes(content) if hmac.compare_digest(mac, made.digest()) else None
    else:
        data = _decrypted(key, label, previous, mac, content, shown)
    if data is None:
        raise Unsealed(f"{shown} was changed, or was under another name: its seal does not match")
    return data, previous, mac


def _decrypted(key: bytes, label: bytes, previous: bytes, mac: bytes, content: memoryview, shown: str) -> bytes | None:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise NotADataDirectory(
            f"{shown} is encrypted: install the package cryptography on driver and executors, which can read it"
        ) from None
    salt, tag = mac[:16], mac[16:]
    derived = hmac.digest(key, label + salt, "sha512")
    try:
        data: bytes = AESGCM(derived[:32]).decrypt(derived[32:44], b"".join((content, tag)), label + previous)
    except InvalidTag:
        return None
    return data

"""Checksums of what is kept."""


def digest_of(body: bytes | bytearray) -> str:
    import hashlib  # here, because it takes long to import, and most devices keep nothing

    return hashlib.blake2b(body, digest_size=16).hexdigest()

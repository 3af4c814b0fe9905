"""Latency tiers: clients that need about as long as each other."""

from collections.abc import Mapping


def tiers(seconds: Mapping[int, float], ratio: float) -> list[list[int]]:
    """Clients by response time, fastest first and ties by number; a tier holds everybody within ``ratio`` of its
    fastest."""
    made: list[list[int]] = []
    for client in sorted(seconds, key=lambda client: (seconds[client], client)):
        if made and seconds[client] <= ratio * seconds[made[-1][0]]:
            made[-1].append(client)
        else:
            made.append([client])
    return made

"""How long orders, messages and updates take on their way."""

from polytempo.sim.flight import Flight
from polytempo.world.devices import Devices


class Network:
    """The clients' connections; where a strategy's models do not travel, nothing takes time or bytes."""

    def __init__(self, devices: Devices, travels: bool, model_size: int) -> None:
        self._devices, self._travels = devices, travels
        self.model_bytes = 4 * model_size if travels else 0

    def down_seconds(self, client: int, nbytes: int) -> float:
        return self._devices.down_seconds(client, nbytes) if self._travels else 0.0

    def up_seconds(self, flight: Flight) -> float:
        return self._devices.up_seconds(flight.order.client, flight.upload_bytes) if self._travels else 0.0

    def arrival(self, flight: Flight) -> float:
        """When the update of a training that has begun will be here."""
        ends = self._devices.finish(flight.order.client, flight.begins, flight.steps, flight.step_seconds)
        return ends + self.up_seconds(flight)

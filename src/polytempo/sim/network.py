"""How long orders, messages and updates take on their way."""

from torch import Tensor

from polytempo.sim.compression import Compression
from polytempo.sim.training import Training
from polytempo.world.devices import Devices


class Network:
    """The clients' connections; where a strategy's models do not travel, nothing takes time or bytes."""

    def __init__(self, devices: Devices, travels: bool, model_size: int, compression: Compression) -> None:
        self._devices, self._travels, self._size, self._compression = devices, travels, model_size, compression
        self.model_bytes = compression.model_bytes(model_size) if travels else 0
        """Of a model on its way to a client."""

    def update_bytes(self, trained: Tensor | None) -> int:
        """Of an update of these entries (None: all)."""
        entries = self._size if trained is None else int(trained.sum())
        return self._compression.update_bytes(entries) if self._travels else 0

    def down_seconds(self, client: int, nbytes: int) -> float:
        return self._devices.down_seconds(client, nbytes) if self._travels else 0.0

    def up_seconds(self, training: Training) -> float:
        return self._devices.up_seconds(training.client, training.upload_bytes) if self._travels else 0.0

    def arrival(self, training: Training) -> float:
        """When the update of a training that has begun will be here."""
        ends = self._devices.finish(training.client, training.begins, training.steps, training.step_seconds)
        return ends + self.up_seconds(training)

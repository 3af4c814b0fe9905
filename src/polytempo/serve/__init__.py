"""The service: a second driver of strategies, on the wall clock, over the network."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our logs are JSON lines; gRPC's own would stand between them

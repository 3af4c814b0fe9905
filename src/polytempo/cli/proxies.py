"""``polytempo data proxies``: samples of each cluster set aside for a server, as a file."""

from pathlib import Path
from typing import Annotated

import typer

from polytempo.core.errors import UserError
from polytempo.world.data import load_dataset
from polytempo.world.partitions import clients_or_refusal, make_federation
from polytempo.world.proxies import proxies_of, write_proxies


def data_proxies(
    out: Annotated[Path, typer.Argument(metavar="OUT.npz", help="the file to write")],
    partition: Annotated[str, typer.Option(help="how the data are dealt out to the clients")],
    data: Annotated[str, typer.Option(help="name of a data set, a file, a folder or an import path")] = "digits",
    data_dir: Annotated[Path | None, typer.Option(help="where data sets lie")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="how many clients the data are dealt out to")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="samples per cluster (default 500, or a fifth)")] = None,
    test_share: Annotated[float, typer.Option(help="share of each client's samples kept for its own test")] = 0.2,
    min_samples: Annotated[int, typer.Option(help="samples that every client must have")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="of everything random")] = 0,
) -> None:
    """Set samples of each cluster aside for ``polytempo serve --proxies``; no client of the same partition has them."""
    if out.suffix != ".npz":
        raise UserError(f"{out} is no .npz file. Proxy sets are written as one: choose another name.")
    dataset = load_dataset(data, data_dir)
    clients = clients_or_refusal(partition, dataset, clients, min_samples)
    made = make_federation(dataset, partition, clients, seed, test_share, min_samples, proxies=size or "default")
    try:
        write_proxies(out, proxies_of(made))
    except OSError as error:
        raise UserError(f"Cannot write {out}: {error.strerror}. Choose another file.") from None
    rows = len(made.clusters[0].proxy)
    print(f"{len(made.clusters)} proxy sets of {rows} samples in {out}. Clients have none of them if they join with")
    print(
        f"--data {data} --partition {partition} --clients {clients} --proxies {rows} "
        f"--test-share {test_share:g} --min-samples {min_samples} --seed {seed}"
    )

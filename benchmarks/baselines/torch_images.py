"""A worker that reads images with PyTorch's DataLoader, for benchmarks/input_images.py.

    torch_images.py RANK WORKERS PROCESSOR PATH

runs in a separate environment with PyTorch and without TensorFlow and tfdist. It answers "read
EPOCHS" with the seconds of each epoch, and "total" with the number of images of an epoch and the
sum of their values in steps of 1/255.
"""

import io
import os
import sys
import time

import numpy as np
import torch
from images import BATCH, CROP, NUMBER, corner_of, is_flipped, positions
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    """The images of a TFRecord file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._positions = positions(path)
        self._file = None

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._file is None:  # each process of the loader has its own
            self._file = open(self._path, "rb")  # noqa: SIM115
        begin, length = self._positions[index]
        self._file.seek(begin)
        record = self._file.read(length)
        (number,) = NUMBER.unpack(record[: NUMBER.size])
        image = np.asarray(Image.open(io.BytesIO(record[NUMBER.size :])))
        top, left = corner_of(number)
        image = image[top : top + CROP, left : left + CROP]
        if is_flipped(number):
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image)).float() / 255.0, number % 10


def main(rank: int, workers: int, processor: int, path: str) -> None:
    """Answers until its input ends."""
    os.sched_setaffinity(0, {processor})
    torch.set_num_threads(1)
    images = Images(path)
    sampler = DistributedSampler(images, workers, rank, shuffle=True, seed=1)
    # One process that reads ahead, as `prefetch` does in a thread.
    loader = DataLoader(
        images,
        BATCH // workers,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        prefetch_factor=2,
    )
    for line in sys.stdin:
        what, *arguments = line.split()
        if what == "total":
            count = total = 0
            for batch, _ in loader:
                count += len(batch)
                total += round(float(batch.double().sum()) * 255)
            print(count, total, flush=True)
            continue
        seconds = []
        for epoch in range(int(arguments[0])):
            sampler.set_epoch(epoch)
            begin = time.perf_counter()
            for _ in loader:
                pass
            seconds.append(time.perf_counter() - begin)
        print(*seconds, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])

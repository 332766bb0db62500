"""A queue of images that workers resize, with a page of dead letters: those that failed three times, and why.

make images

images         the queue; a job names an image
images.dead    its dead letters
images.events  what happens to each image, for the page
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from pages import arguments, serve
from PIL import Image, ImageDraw, ImageFile

from topics_client import AsyncClient, Client, Job, worker

SIZE = (240, 160)


class Studio:
    """The folder of the images, and what the page asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client: Client
        self._numbers = itertools.count(1)

    def upload(self, name: str, content: bytes) -> None:
        image = f"{next(self._numbers):04d}"
        (self.folder / image).write_bytes(content)
        self.client.publish("images", {"image": image, "name": name, "bytes": len(content)})

    def generate(self, *_: object) -> None:
        """Add ten images, two of which are damaged: one is cut short, one is no image at all."""
        for number in range(8):
            self.upload(f"pattern-{number + 1}.jpg", pattern())
        whole = pattern()
        self.upload("cut-short.jpg", whole[: len(whole) * 2 // 3])
        self.upload("notes.jpg", b"Buy milk, and paint for the fence.")

    def mend(self, *_: object) -> None:
        """Deploy workers that take images which are cut short."""
        ImageFile.LOAD_TRUNCATED_IMAGES = True

    def resize(self, job: Job) -> None:
        started = time.perf_counter()
        with Image.open(self.folder / job.data["image"]) as image:
            size = image.size
            image.thumbnail(SIZE)
            thumb = f"{job.data['image']}.jpg"
            image.convert("RGB").save(self.folder / thumb, quality=85)
        took_ms = round(1000 * (time.perf_counter() - started))
        self.tell(job, "done", thumb=thumb, size=f"{size[0]} × {size[1]}", ms=took_ms)

    def failed(self, job: Job, error: Exception) -> None:
        self.tell(job, "failed", attempt=job.deliveries, error=str(error).replace(f"{self.folder}/", ""))

    def tell(self, job: Job, state: str, **more: object) -> None:
        self.client.publish("images.events", {**job.data, "state": state, **more})


def pattern() -> bytes:
    """A JPEG file of circles."""
    hue = random.randrange(256)
    image = Image.new("HSV", (1200, 800), (hue, 90, 250))
    draw = ImageDraw.Draw(image)
    for step in range(60):
        angle, radius = step * 2.4, 60 * math.sqrt(step)
        x, y, size = 600 + radius * math.cos(angle), 400 + radius * math.sin(angle), 15 + step
        draw.ellipse((x - size, y - size, x + size, y + size), fill=((hue + 2 * step) % 256, 160, 255 - 2 * step))
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG")
    return file.getvalue()


async def work(url: str, token: str, studio: Studio) -> None:
    options = {"concurrency": 2, "backoff": lambda deliveries: 0.3 * deliveries, "on_failure": studio.failed}
    async with AsyncClient(url, token=token) as client:
        await client.work(worker("images", **options)(studio.resize))


def main() -> None:
    asked = arguments(__doc__.partition("\n")[0]).parse_args()
    logging.getLogger("topics_client").setLevel(logging.ERROR)  # the page shows failures
    with TemporaryDirectory(prefix="topics-images-") as folder:
        studio = Studio(Path(folder))
        actions = {"upload": studio.upload, "generate": studio.generate, "mend": studio.mend}
        with (
            serve("images.html", asked, Path(folder), actions) as site,
            Client(site.url, token=asked.key) as studio.client,
        ):
            studio.client.configure("images", type="queue", max_deliveries=3, dead_letter="images.dead")
            site.open()
            anyio.run(work, site.url, asked.key, studio)


if __name__ == "__main__":
    main()

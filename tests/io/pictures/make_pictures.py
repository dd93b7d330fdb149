"""Makes small pictures of every kind that io/picture reads, and what Pillow and transformers make of them, in
expected.safetensors. Run it from the repository's root with pillow 12, numpy, safetensors and
transformers. (Pillow 13 resizes vertically first where that is cheaper, which changes roundings.)

The files here were made with Pillow 12.1.0 and transformers 5.24.0. Transparent pictures are laid over black,
CMYK pictures are converted as Pillow does, and 16 bits keep their high byte."""
import io
import math
import pathlib
import struct
import zlib

import numpy as np
import PIL
from PIL import Image, ImageOps
from safetensors.numpy import save_file

FOLDER = pathlib.Path("tests/io/pictures")
WIDTH, HEIGHT = 23, 14  # odd sizes, so that blocks and subsampled colours end within the picture
expected = {}


def array(picture):
    return np.ascontiguousarray(np.asarray(picture), dtype=np.uint8)


def opened(data):
    """What read_picture gives, by Pillow alone."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if picture.has_transparency_data:
        black = Image.new("RGB", picture.size)
        rgba = picture.convert("RGBA")
        black.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
        return black
    if picture.mode.startswith("I"):  # 16 bits of gray
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    return picture.convert("RGB")


def keep(name, data):
    (FOLDER / name).write_bytes(data)
    expected[name] = array(opened(data))


def save(name, picture, **options):
    out = io.BytesIO()
    picture.save(out, pathlib.Path(name).suffix[1:].replace("jpg", "jpeg"), **options)
    keep(name, out.getvalue())


def drawn(width, height, channels, seed):
    """Smooth colours with edges and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for c in range(channels):
        plane = 128 + 90 * np.sin(0.3 * (c + 1) * x + 0.2 * y) + 60 * ((x + 2 * y + 5 * c) % 11 > 5)
        planes.append(plane + rng.integers(-30, 30, plane.shape))
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def png(name, depth, color, rows, chunks=(), interlace=0):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, color, 0, 0, interlace)
    keep(name, b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunk(*c) for c in chunks) +
         chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def rows_of(pixels):
    return b"".join(b"\0" + row.tobytes() for row in pixels)


def exif(orientation, big=True):
    end = ">" if big else "<"
    return (b"MM" if big else b"II") + struct.pack(end + "HIHHHIHHI", 42, 8, 1, 0x112, 3, 1, orientation, 0, 0)


def pictures():
    rgb = Image.fromarray(drawn(WIDTH, HEIGHT, 3, 1))
    rgba = Image.fromarray(drawn(WIDTH, HEIGHT, 4, 2))
    gray = rgb.convert("L")
    save("rgb.png", rgb)
    save("gray.png", gray)
    save("bilevel.png", gray.convert("1"))
    save("palette.png", rgb.quantize(11))
    save("palette_alpha.png", rgb.quantize(11), transparency=bytes([0, 40, 255, 130]))
    save("gray_alpha.png", rgba.convert("LA"))
    save("rgba.png", rgba)
    save("gray_transparent.png", gray, transparency=int(np.asarray(gray)[3, 3]))
    save("rgb_transparent.png", rgb, transparency=tuple(int(v) for v in np.asarray(rgb)[3, 3]))
    save("turned.png", rgb, exif=exif(6))
    wide = np.random.default_rng(3).integers(0, 65536, (HEIGHT, WIDTH, 3))
    big = wide.astype(">u2")
    png("rgb16.png", 16, 2, rows_of(big))
    png("gray16.png", 16, 0, rows_of(big[:, :, 0]))
    png("rgba16.png", 16, 6, rows_of(np.concatenate([big, big[:, :, :1]], -1)))
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    png("interlaced.png", 8, 2, b"".join(rows_of(np.asarray(rgb)[y::dy, x::dx]) for x, y, dx, dy in passes), interlace=1)

    save("rgb.jpg", rgb, quality=80)
    save("full_colours.jpg", rgb, quality=90, subsampling=0)
    save("progressive.jpg", rgb, quality=80, progressive=True)
    save("gray.jpg", gray, quality=80)
    save("restarts.jpg", rgb, quality=80, restart_marker_blocks=1)
    save("cmyk.jpg", Image.fromarray(drawn(WIDTH, HEIGHT, 4, 4), "CMYK"), quality=95)
    for orientation in range(1, 9):
        save(f"turned{orientation}.jpg", rgb, quality=80, exif=b"Exif\0\0" + exif(orientation, orientation % 2 == 0))

    save("lossy.webp", rgb, quality=80)
    save("lossless.webp", rgb, lossless=True)
    save("lossy_alpha.webp", rgba, quality=80)
    save("lossless_alpha.webp", rgba, lossless=True)
    save("turned.webp", rgb, quality=80, exif=exif(8))


def cover(picture, width, height):
    """best_output_size's caller in wan/textimage2video.py: Lanczos, then the middle."""
    scale = max(width / picture.width, height / picture.height)
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.LANCZOS)
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def contain(picture, width, height):
    scale = min(width / picture.width, height / picture.height)
    size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
    out = Image.new("RGB", (width, height))
    out.paste(picture.resize(size, Image.LANCZOS), ((width - size[0]) // 2, (height - size[1]) // 2))
    return out


def sizes():
    for name, picture in [("wide", Image.fromarray(drawn(61, 37, 3, 5))), ("noise", Image.fromarray(
            np.random.default_rng(6).integers(0, 256, (40, 16, 3), dtype=np.uint8)))]:
        expected[f"in.{name}"] = array(picture)
        for width, height in [(32, 32), (61, 20), (16, 64), (5, 3), (47, 41), (1, 1)]:
            for filter_name, kind in [("lanczos", Image.LANCZOS), ("bicubic", Image.BICUBIC)]:
                expected[f"{filter_name}.{name}.{width}x{height}"] = array(picture.resize((width, height), kind))
            expected[f"cover.{name}.{width}x{height}"] = array(cover(picture, width, height))
            expected[f"contain.{name}.{width}x{height}"] = array(contain(picture, width, height))


def clip():
    from transformers import CLIPImageProcessorPil as CLIPImageProcessor
    for name in ["wide", "noise"]:
        picture = Image.fromarray(expected[f"in.{name}"])
        for kind, options in [("crop", {"size": {"shortest_edge": 20}}), ("small", {"size": {"shortest_edge": 11}}),
                              ("squash", {"size": {"height": 20, "width": 20}, "do_center_crop": False}),
                              ("unscaled", {"size": {"shortest_edge": 24}, "do_normalize": False})]:
            processor = CLIPImageProcessor(crop_size={"height": 20, "width": 20}, **options)
            pixels = processor(picture, return_tensors="np")["pixel_values"][0]
            expected[f"clip.{kind}.{name}"] = np.ascontiguousarray(pixels, dtype=np.float32)


if __name__ == "__main__":
    print("Pillow", PIL.__version__)
    pictures()
    sizes()
    clip()
    save_file(expected, FOLDER / "expected.safetensors")

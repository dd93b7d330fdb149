#include "io/picture/picture_header.h"

#include <algorithm>
#include <array>

#include "kernels/check.h"

namespace weft {
namespace {

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kExifPrefix{"Exif\0\0", 6};
constexpr int kMaxScans = 100;                           // of a progressive JPEG
constexpr int64_t kMaxScannedPixels = int64_t{1} << 30;  // pixels * scans
constexpr int64_t kMaxDeflateRatio = 1032;               // 258 bytes from 2 bits

constexpr int64_t kBitsPerByte = 8;

enum class Endian { kLittle, kBig };

// Bytes of the file, with reads that never leave it.
class ByteView {
 public:
  ByteView(const std::string& name, std::string_view bytes) : name_(name), bytes_(bytes) {}

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::kMedia, "cannot read '" + name_ + "': " + why);
  }
  [[noreturn]] void refuse(const std::string& field, int64_t value,
                           const std::string& legal) const {
    refuse(field + " is " + std::to_string(value) + " (legal: " + legal + ")");
  }
  [[noreturn]] void refuse_end(size_t wanted) const {
    refuse("the file ends early: it holds " + std::to_string(bytes_.size()) +
           " bytes and needs at least " + std::to_string(wanted));
  }

  size_t size() const { return bytes_.size(); }
  // Refuses the file if it has fewer than `end` bytes.
  void need(size_t end) const {
    if (end > bytes_.size()) refuse_end(end);
  }
  std::string_view text(size_t at, size_t count) const {
    need(at + count);
    return bytes_.substr(at, count);
  }
  int byte(size_t at) const {
    need(at + 1);
    return static_cast<uint8_t>(bytes_[at]);
  }
  int64_t number(size_t at, size_t count, Endian endian) const {
    need(at + count);
    int64_t value = 0;
    for (size_t i = 0; i < count; ++i)
      value = value << 8 | byte(at + (endian == Endian::kBig ? i : count - 1 - i));
    return value;
  }

  void check_size(int64_t width, int64_t height) const {
    const std::string legal = "1 ... " + std::to_string(kMaxPictureSide);
    if (width < 1 || width > kMaxPictureSide) refuse("the width", width, legal);
    if (height < 1 || height > kMaxPictureSide) refuse("the height", height, legal);
    if (width * height > kMaxPicturePixels)
      refuse("the number of pixels", width * height,
             "at most " + std::to_string(kMaxPicturePixels));
  }

 private:
  const std::string& name_;
  std::string_view bytes_;
};

// The orientation that EXIF data give, 1 where they give none. They are a TIFF file, which may
// stand after a prefix.
int exif_orientation(std::string_view exif) {
  if (exif.starts_with(kExifPrefix)) exif.remove_prefix(kExifPrefix.size());
  const std::string name;
  const ByteView tiff(name, exif);
  constexpr size_t kEntryBytes = 12;
  constexpr int kOrientationTag = 0x112, kShort = 3, kLong = 4;
  if (exif.size() < 8 || (!exif.starts_with("II") && !exif.starts_with("MM"))) return 1;
  const Endian endian = exif[0] == 'I' ? Endian::kLittle : Endian::kBig;
  const auto first = static_cast<size_t>(tiff.number(4, 4, endian));
  if (first + 2 > exif.size()) return 1;
  const auto entries = static_cast<size_t>(tiff.number(first, 2, endian));
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = first + 2 + i * kEntryBytes;
    if (at + kEntryBytes > exif.size()) return 1;
    if (tiff.number(at, 2, endian) != kOrientationTag) continue;
    const int64_t type = tiff.number(at + 2, 2, endian);
    if (type != kShort && type != kLong) return 1;
    const int64_t value = tiff.number(at + 8, type == kShort ? 2 : 4, endian);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

// --- PNG -----------------------------------------------------------------------------------------

struct PngPixels {
  int color = 0, depth = 0;
};

PngPixels check_png_pixels(const ByteView& file) {
  constexpr int kGray = 0, kColors = 2, kPalette = 3, kGrayAlpha = 4, kColorsAlpha = 6;
  const PngPixels pixels{file.byte(25), file.byte(24)};
  const auto check_depth = [&](const std::string& legal, std::initializer_list<int> depths) {
    if (std::ranges::find(depths, pixels.depth) == depths.end())
      file.refuse("the bit depth of color type " + std::to_string(pixels.color), pixels.depth,
                  legal);
  };
  switch (pixels.color) {
    case kGray:
      check_depth("1, 2, 4, 8, 16", {1, 2, 4, 8, 16});
      break;
    case kPalette:
      check_depth("1, 2, 4, 8", {1, 2, 4, 8});
      break;
    case kColors:
    case kGrayAlpha:
    case kColorsAlpha:
      check_depth("8, 16", {8, 16});
      break;
    default:
      file.refuse("the color type", pixels.color, "0, 2, 3, 4, 6");
  }
  if (file.byte(26) != 0) file.refuse("the compression method", file.byte(26), "0");
  if (file.byte(27) != 0) file.refuse("the filter method", file.byte(27), "0");
  if (file.byte(28) > 1) file.refuse("the interlace method", file.byte(28), "0, 1");
  return pixels;
}

PictureHeader png_header(const ByteView& file) {
  constexpr std::array<int, 7> kChannels{1, 0, 3, 1, 2, 0, 4};
  PictureHeader header{PictureFormat::kPng};
  if (file.text(12, 4) != "IHDR" || file.number(8, 4, Endian::kBig) != 13)
    file.refuse("the first chunk is no IHDR chunk of 13 bytes");
  const int64_t width = file.number(16, 4, Endian::kBig);
  const int64_t height = file.number(20, 4, Endian::kBig);
  file.check_size(width, height);
  const PngPixels pixels = check_png_pixels(file);
  header.width = static_cast<int>(width);
  header.height = static_cast<int>(height);

  int64_t compressed = 0;
  for (size_t at = kPngSignature.size();;) {
    const auto length = static_cast<size_t>(file.number(at, 4, Endian::kBig));
    const std::string_view type = file.text(at + 4, 4);
    file.need(at + 12 + length);
    if (type == "IDAT") compressed += static_cast<int64_t>(length);
    if (type == "eXIf") header.orientation = exif_orientation(file.text(at + 8, length));
    if (type == "IEND") break;
    at += 12 + length;
  }
  const int64_t bits = int64_t{kChannels[static_cast<size_t>(pixels.color)]} * pixels.depth;
  const int64_t raw_bytes = width * height * bits / 8;
  if (raw_bytes > (compressed + 1) * kMaxDeflateRatio)
    file.refuse(std::to_string(compressed) + " bytes of IDAT chunks cannot hold " +
                std::to_string(raw_bytes) + " bytes of pixels");
  return header;
}

// --- JPEG ----------------------------------------------------------------------------------------

constexpr int kSof0 = 0xc0, kSof2 = 0xc2, kSof15 = 0xcf, kDht = 0xc4, kJpg = 0xc8, kDac = 0xcc;
constexpr int kRst0 = 0xd0, kSoi = 0xd8, kEoi = 0xd9, kSos = 0xda, kApp1 = 0xe1, kTem = 0x01;

bool starts_a_frame(int marker) {
  return marker >= kSof0 && marker <= kSof15 && marker != kDht && marker != kJpg && marker != kDac;
}

// Returns the position of the next marker's second byte, as a decoder finds it: other bytes and
// FF 00 are skipped, as well as the restart markers in the data of a scan.
size_t next_marker(const ByteView& file, size_t at, bool in_scan) {
  for (;; ++at) {
    if (file.byte(at) != 0xff) continue;
    while (file.byte(at) == 0xff) ++at;
    const int marker = file.byte(at);
    if (marker != 0 && !(in_scan && marker >= kRst0 && marker < kSoi)) return at;
  }
}

void read_frame(const ByteView& file, int marker, size_t at, PictureHeader* header) {
  if (marker > kSof2)
    file.refuse("the coding is SOF" + std::to_string(marker - kSof0) +
                " (legal: SOF0, SOF1, SOF2: baseline, extended, progressive)");
  if (header->width > 0) file.refuse("two headers of a frame");
  const int64_t height = file.number(at + 3, 2, Endian::kBig);
  const int64_t width = file.number(at + 5, 2, Endian::kBig);
  const int components = file.byte(at + 7);
  if (file.byte(at + 2) != 8) file.refuse("the number of bits", file.byte(at + 2), "8");
  file.check_size(width, height);
  if (components != 1 && components != 3 && components != 4)
    file.refuse("the number of components", components, "1, 3, 4");
  header->width = static_cast<int>(width);
  header->height = static_cast<int>(height);
}

PictureHeader jpeg_header(const ByteView& file) {
  PictureHeader header{PictureFormat::kJpeg};
  bool oriented = false;
  int scans = 0;
  for (size_t at = 2;;) {
    at = next_marker(file, at, scans > 0);
    const int marker = file.byte(at++);
    if (marker == kEoi) break;
    if (marker == kSoi) file.refuse("a second start of a picture inside the picture");
    if (marker == kTem || (marker >= kRst0 && marker < kSoi)) continue;  // these stand alone
    const auto length = static_cast<size_t>(file.number(at, 2, Endian::kBig));
    if (length < 2)
      file.refuse("the length of a segment", static_cast<int64_t>(length), "2 ... 65535");
    const std::string_view segment = file.text(at, length);
    if (starts_a_frame(marker)) read_frame(file, marker, at, &header);
    if (marker == kApp1 && !oriented && segment.substr(2).starts_with(kExifPrefix)) {
      header.orientation = exif_orientation(segment.substr(2));
      oriented = true;
    }
    if (marker == kSos) {
      if (header.width == 0) file.refuse("a scan stands before the header of the frame");
      const int64_t most =
          std::min<int64_t>(kMaxScans, kMaxScannedPixels / header.width / header.height);
      if (++scans > most)
        file.refuse("the number of scans", scans, "at most " + std::to_string(most));
    }
    at += length;
  }
  if (scans == 0) file.refuse("the picture has no scan");
  const int64_t blocks = int64_t{(header.width + 7) / 8} * ((header.height + 7) / 8);
  if (blocks > kBitsPerByte * static_cast<int64_t>(file.size()))  // a block takes at least one bit
    file.refuse(std::to_string(file.size()) + " bytes cannot hold " + std::to_string(header.width) +
                " x " + std::to_string(header.height) + " pixels");
  return header;
}

// --- WebP ----------------------------------------------------------------------------------------

struct PictureSize {
  int64_t width = 0, height = 0;
};

PictureSize lossy_size(const ByteView& file, size_t at) {
  if ((file.byte(at) & 1) != 0 || file.text(at + 3, 3) != "\x9d\x01\x2a")
    file.refuse("the VP8 chunk does not begin with a key frame");
  return {file.number(at + 6, 2, Endian::kLittle) & 0x3fff,
          file.number(at + 8, 2, Endian::kLittle) & 0x3fff};
}

PictureSize lossless_size(const ByteView& file, size_t at) {
  if (file.byte(at) != 0x2f) file.refuse("the signature of the VP8L chunk", file.byte(at), "47");
  const int64_t bits = file.number(at + 1, 4, Endian::kLittle);
  if (bits >> 29 != 0) file.refuse("the version of the VP8L chunk", bits >> 29, "0");
  return {(bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1};
}

PictureHeader webp_header(const ByteView& whole, const std::string& name, std::string_view bytes) {
  constexpr int kAnimated = 2;
  const auto riff = static_cast<size_t>(whole.number(4, 4, Endian::kLittle));
  whole.need(8 + riff);
  const ByteView file(name, bytes.substr(0, 8 + riff));
  PictureHeader header{PictureFormat::kWebp};
  PictureSize canvas, picture;
  for (size_t at = 12; at < file.size();) {
    const std::string_view type = file.text(at, 4);
    const auto length = static_cast<size_t>(file.number(at + 4, 4, Endian::kLittle));
    const size_t data = at + 8;
    file.need(data + length);
    if (type == "VP8X") {
      if (file.byte(data) & kAnimated)
        file.refuse("the WebP file is animated (legal: a still picture)");
      canvas = {file.number(data + 4, 3, Endian::kLittle) + 1,
                file.number(data + 7, 3, Endian::kLittle) + 1};
      file.check_size(canvas.width, canvas.height);
    }
    if (type == "VP8 " || type == "VP8L") {
      if (picture.width > 0) file.refuse("two pictures in one WebP file");
      picture = type == "VP8 " ? lossy_size(file, data) : lossless_size(file, data);
      file.check_size(picture.width, picture.height);
    }
    if (type == "EXIF") header.orientation = exif_orientation(file.text(data, length));
    at = data + length + length % 2;
  }
  if (picture.width == 0) file.refuse("the WebP file has no VP8 or VP8L chunk");
  if (canvas.width > 0 && (canvas.width != picture.width || canvas.height != picture.height))
    file.refuse("the canvas is " + std::to_string(canvas.width) + "x" +
                std::to_string(canvas.height) + " and the picture " +
                std::to_string(picture.width) + "x" + std::to_string(picture.height) +
                " (legal: the same size)");
  header.width = static_cast<int>(picture.width);
  header.height = static_cast<int>(picture.height);
  return header;
}

}  // namespace

PictureHeader read_picture_header(const std::string& name, std::string_view bytes) {
  const ByteView file(name, bytes);
  if (bytes.size() > kMaxPictureBytes)
    file.refuse("the number of bytes", static_cast<int64_t>(bytes.size()),
                "at most " + std::to_string(kMaxPictureBytes));
  if (bytes.starts_with(kPngSignature)) return png_header(file);
  if (bytes.starts_with("\xff\xd8\xff")) return jpeg_header(file);
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP")
    return webp_header(file, name, bytes);
  file.refuse(
      "its first bytes are of no known picture (legal: a JPEG, PNG or WebP file, whatever its "
      "name)");
}

}  // namespace weft

#include "io/weights/file_kind.h"

#include <algorithm>

#include "io/weights/safetensors_header.h"

namespace weft {
namespace {

struct Magic {
  std::string_view bytes;
  const char* kind;
};

constexpr const char kPickle[] =
    "is a pickle archive, which is never read; convert it to safetensors or download a safetensors "
    "copy";
constexpr const char kArchive[] = "is a compressed archive, not the weights; unpack it first";
constexpr Magic kMagics[] = {
    {"version https://git-lfs",
     "is a Git LFS pointer, not the weights; fetch them with 'git lfs pull'"},
    {"GGUF", "is a GGUF file under another name; let its name end in .gguf"},
    {"PK\3\4", kPickle},
    {"\x80\2", kPickle},
    {"\x80\3", kPickle},
    {"\x80\4", kPickle},
    {"\x80\5", kPickle},
    {"\x1f\x8b", kArchive},
    {"7z\xbc\xaf\x27\x1c", kArchive},
    {"\xfd"
     "7zXZ",
     kArchive},
    {"\x28\xb5\x2f\xfd", kArchive},
    {"Rar!", kArchive},
    {"BZh", kArchive},
    {"lmgg", "is a GGML file, the format before GGUF, which is not read; convert it to GGUF"},
    {"fmgg", "is a GGML file, the format before GGUF, which is not read; convert it to GGUF"},
    {"tjgg", "is a GGML file, the format before GGUF, which is not read; convert it to GGUF"},
    {"\x89HDF", "is an HDF5 file, which is not read; convert it to safetensors"},
    {"\x93NUMPY", "is a NumPy array, which is not read; convert it to safetensors"}};

// A safetensors file begins with the length of a JSON object.
bool is_safetensors_start(std::string_view start) {
  if (start.size() < 9 || start[8] != '{') return false;
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(start[i]);
  return length <= kMaxHeaderBytes;
}

bool is_printable(std::string_view bytes) {
  return std::ranges::all_of(bytes, [](unsigned char c) {
    return c == '\t' || c == '\n' || c == '\r' || c == '\f' || (c >= 0x20 && c != 0x7f && c < 0xf5);
  });
}

std::string kind_of_text(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n")));
  if (text.starts_with('<'))
    return "is an HTML page, not the weights: the download met a page for logging in, a licence or "
           "an error; fetch the file again, with the access that its repository asks for";
  const std::string first(text.substr(0, std::min(text.find_first_of("\r\n"), size_t{60})));
  return std::string(text.starts_with('{') || text.starts_with('[') ? "is JSON" : "is a text") +
         ", not the weights; it begins with " + quoted_name(first);
}

}  // namespace

std::string file_kind(std::string_view start) {
  for (const Magic& magic : kMagics)
    if (start.starts_with(magic.bytes)) return magic.kind;
  if (is_safetensors_start(start))
    return "is a safetensors file under another name; let its name end in .safetensors";
  start = start.substr(0, kFileKindBytes);
  return !start.empty() && is_printable(start) ? kind_of_text(start) : "";
}

}  // namespace weft

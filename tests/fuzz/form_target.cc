#include "tests/fuzz/form_target.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "apps/serve/http/form_reader.h"
#include "apps/serve/http/upload_folder.h"
#include "io/text/utf8.h"
#include "kernels/check.h"

namespace weft::fuzz {
namespace {

// A part as a route sees it.
struct ReadPart {
  std::string name, file_name, content_type, content;
  bool is_file;
  bool operator==(const ReadPart&) const = default;
};
using ReadParts = std::vector<ReadPart>;

ServerLimits small_limits() {
  ServerLimits limits;
  limits.form_bytes = 1500;
  limits.body_bytes = 300;
  limits.form_parts = 5;
  return limits;
}
const ServerLimits& limits_of_forms() {
  static const ServerLimits limits = small_limits();
  return limits;
}

ReadPart read_part(const FormPart& part) {
  if (part.file.empty()) return {part.name, part.file_name, part.content_type, part.text, false};
  std::ifstream file(part.file, std::ios::binary);
  const std::string held{std::istreambuf_iterator<char>(file), {}};
  CHECK(held.size() == part.bytes && sha256_hex(held) == part.sha256, part.bytes, held.size());
  return {part.name, part.file_name, part.content_type, held, true};
}

// The parts, or the refusal: its status and code.
struct Outcome {
  std::optional<ReadParts> parts{};
  std::string refusal{};
  bool operator==(const Outcome&) const = default;
};

// Reads the form in pieces of sizes that `random` gives; without it, in one.
Outcome outcome_of(const std::string& boundary, std::string_view form, std::minstd_rand* random) {
  static const UploadFolder folder("");
  std::vector<std::string> files;
  Outcome out;
  try {
    FormReader reader(boundary, limits_of_forms(), folder.path());
    while (!form.empty()) {
      const size_t most = random ? 1 + (*random)() % 4 * ((*random)() % 24) : form.size();
      const std::string_view piece = form.substr(0, most);
      reader.put(piece);
      form.remove_prefix(piece.size());
    }
    const std::shared_ptr<const Form> parts = reader.finish();
    out.parts.emplace();
    for (const FormPart& part : *parts) {
      out.parts->push_back(read_part(part));
      if (!part.file.empty()) files.push_back(part.file);
    }
  } catch (const FormRefused& refused) {
    const std::string message = refused.what();
    CHECK(refused.status == 400 || refused.status == 413, refused.status, message);
    CHECK(!message.empty() && message.size() < 500 && is_utf8(message), message);
    CHECK(!refused.response().body.empty());
    out.refusal = std::to_string(refused.status) + " " + refused.code;
  }
  for (const std::string& file : files) CHECK(access(file.c_str(), F_OK) != 0, file);
  return out;
}

// The same by a parser of the whole form, which knows no limits; nullopt where it is malformed.
std::optional<ReadParts> slow_parts(const std::string& boundary, std::string_view form) {
  const std::string delimiter = "\r\n--" + boundary, all = "\r\n" + std::string(form);
  std::vector<std::string> pieces;  // what stands between delimiters
  for (size_t begin = 0; begin != std::string::npos;) {
    const size_t end = all.find(delimiter, begin);
    pieces.push_back(all.substr(begin, end - begin));
    begin = end == std::string::npos ? end : end + delimiter.size();
  }
  ReadParts parts;
  for (size_t i = 1; i < pieces.size(); ++i) {
    const std::string& piece = pieces[i];
    if (piece.starts_with("--")) return parts;
    const size_t line = piece.find_first_not_of(" \t");
    constexpr size_t kMostSpaces = 256;
    if (line == std::string::npos || line > kMostSpaces || piece.compare(line, 2, "\r\n") != 0)
      return std::nullopt;
    // A part may end with the line of its header. Then the delimiter has taken the next line.
    const std::string block = piece.substr(line) + (i + 1 < pieces.size() ? "\r\n" : "");
    const size_t end = block.find("\r\n\r\n");
    if (end == std::string::npos) return std::nullopt;
    PartHeader header;
    try {
      header = read_part_header(end < 2 ? "" : std::string_view(block).substr(2, end - 2));
    } catch (const FormRefused&) {
      return std::nullopt;
    }
    std::string content = block.size() - end < 6 ? "" : block.substr(end + 4);
    if (content.ends_with("\r\n")) content.resize(content.size() - 2);
    if (!header.is_file && !is_utf8(content)) return std::nullopt;
    if (header.is_file && header.has_file_name && header.file_name.empty() && content.empty())
      continue;
    parts.push_back({header.name, header.file_name, header.content_type, content, header.is_file});
  }
  return std::nullopt;  // no delimiter ends it
}

std::string percent_coded(const std::string& text) {
  std::string out = "UTF-8''";
  for (const char c : text) {
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned char>(c));
    out += code;
  }
  return out;
}

void write_and_read(const ReadParts& parts) {
  std::string form;
  for (const ReadPart& part : parts) {
    if (("\r\n" + part.content).find("\r\n--other") != std::string::npos) return;
    form += "--other\r\nContent-Disposition: form-data; name*=" + percent_coded(part.name);
    if (!part.file_name.empty())
      form += "; filename*=" + percent_coded(part.file_name);
    else if (part.is_file)
      form += "; filename=\"\"";
    if (!part.content_type.empty()) form += "\r\nContent-Type: " + part.content_type;
    form += "\r\n\r\n" + part.content + "\r\n";
  }
  const Outcome again = outcome_of("other", form + "--other--", nullptr);
  if (again.refusal.starts_with("413")) return;  // these names are longer
  ReadParts expected = parts;
  std::erase_if(expected, [](const ReadPart& part) {
    return part.is_file && part.file_name.empty() && part.content.empty();
  });
  CHECK(again.parts == expected, again.refusal, form);
}

}  // namespace

void multipart(std::span<const uint8_t> bytes) {
  std::string_view form(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string boundary = "B";
  if (const size_t end = form.find('\0'); end != std::string_view::npos) {
    try {
      boundary = form_boundary(std::string(form.substr(0, end)));
    } catch (const FormRefused&) {
      return;
    }
    form.remove_prefix(end + 1);
  }
  const Outcome whole = outcome_of(boundary, form, nullptr);
  std::minstd_rand random(static_cast<unsigned>(std::hash<std::string_view>()(form)));
  const Outcome split = outcome_of(boundary, form, &random);
  CHECK(whole == split, whole.refusal, split.refusal);
  if (whole.refusal.starts_with("413")) return;  // the slow parser has no limits
  const std::optional<ReadParts> slow = slow_parts(boundary, form);
  CHECK(slow == whole.parts, whole.refusal, form);
  if (whole.parts) write_and_read(*whole.parts);
}

}  // namespace weft::fuzz

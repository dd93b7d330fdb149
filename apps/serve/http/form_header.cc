#include "apps/serve/http/form_header.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "io/text/utf8.h"

namespace weft {
namespace {

constexpr size_t kLongestBoundary = 70;  // RFC 2046

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return is_letter_or_digit(c) || kMarks.find(c) != std::string_view::npos;
  });
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

struct Parameter {
  std::string name, value;  // the name is in small letters
};
struct HeaderValue {
  std::string value{};  // in small letters
  std::vector<Parameter> parameters{};

  const std::string* find(std::string_view name) const {
    const auto found = std::ranges::find(parameters, name, &Parameter::name);
    return found == parameters.end() ? nullptr : &found->value;
  }
};

// Takes a text in quotation marks off `rest`. A backslash quotes these marks and itself alone:
// browsers send those of a path on Windows as they are.
std::string take_quoted(std::string_view& rest, const std::string& header) {
  std::string out;
  for (size_t i = 1; i < rest.size(); ++i) {
    const bool quotes =
        rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\');
    if (rest[i] == '"') {
      rest.remove_prefix(i + 1);
      return out;
    }
    if (quotes) ++i;
    out += rest[i];
  }
  throw FormRefused("A quotation mark is missing in the header " + header + " of the form.");
}

// Reads "form-data; name="a"; filename=b".
HeaderValue read_header_value(std::string_view text, const std::string& header) {
  HeaderValue out;
  const size_t end_of_value = std::min(text.find(';'), text.size());
  out.value = lowercase(std::string(trimmed(text.substr(0, end_of_value))));
  std::string_view rest = text.substr(end_of_value);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    if (trimmed(rest).empty()) break;
    const size_t mark = rest.find('=');
    const std::string_view name = trimmed(rest.substr(0, mark));
    if (mark == std::string_view::npos || !is_token(name))
      throw FormRefused("The header " + header + " of the form has a parameter without a value.");
    rest = rest.substr(mark + 1);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    Parameter parameter{lowercase(std::string(name)), ""};
    if (out.find(parameter.name))
      throw FormRefused("The header " + header + " of the form states " + parameter.name +
                        " twice.");
    if (rest.starts_with('"')) {
      parameter.value = take_quoted(rest, header);
      rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
    } else {
      parameter.value = trimmed(rest.substr(0, rest.find(';')));
      rest.remove_prefix(std::min(rest.find(';'), rest.size()));
    }
    if (!rest.empty() && rest.front() != ';')
      throw FormRefused("The header " + header + " of the form has text after a quotation mark.");
    out.parameters.push_back(std::move(parameter));
  }
  return out;
}

// Returns the byte that "%0A" at the beginning of a text stands for.
std::optional<char> percent_byte(std::string_view text) {
  uint8_t byte = 0;
  if (text.size() < 3 || text[0] != '%') return std::nullopt;
  const char* digits = text.data() + 1;
  if (std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2) return std::nullopt;
  return static_cast<char>(byte);
}

// A name as HTML states it: "%22" for a quotation mark, "%0A" and the like for control characters,
// and no other codes.
std::string plain_name(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::optional<char> byte = percent_byte(text.substr(i));
    const bool is_code = byte && (*byte == '"' || (*byte >= 0 && *byte < ' '));
    out += is_code ? *byte : text[i];
    if (is_code) i += 2;
  }
  return out;
}

// A name as RFC 5987 states it: UTF-8'en'%e2%82%ac.
std::string extended_name(std::string_view text) {
  const size_t first = text.find('\''), second = text.find('\'', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos ||
      lowercase(std::string(text.substr(0, first))) != "utf-8")
    throw FormRefused("A name of the form is in a charset that is not known; legal: UTF-8''NAME.");
  std::string out;
  for (size_t i = second + 1; i < text.size(); ++i) {
    const std::optional<char> byte = percent_byte(text.substr(i));
    out += byte.value_or(text[i]);
    if (byte) i += 2;
  }
  return out;
}

// The parameter of that name in either spelling; nullopt where there is none.
std::optional<std::string> name_in(const HeaderValue& disposition, const std::string& parameter) {
  std::optional<std::string> name;
  if (const std::string* extended = disposition.find(parameter + "*"))
    name = extended_name(*extended);
  else if (const std::string* plain = disposition.find(parameter))
    name = plain_name(*plain);
  if (name && !is_utf8(*name))
    throw FormRefused("A part of the form has a " + parameter + " that is not UTF-8.");
  return name;
}

bool is_type_of_files(const std::string& type) {
  return type.starts_with("image/") || type.starts_with("audio/") || type.starts_with("video/") ||
         type == "application/octet-stream";
}

void read_disposition(std::string_view value, PartHeader& out) {
  const HeaderValue disposition = read_header_value(value, "Content-Disposition");
  if (disposition.value != "form-data")
    throw FormRefused("A part of the form has the Content-Disposition '" +
                      shown_bytes(disposition.value.substr(0, 40)) + "', legal: form-data.");
  out.name = name_in(disposition, "name").value_or("");
  const std::optional<std::string> file_name = name_in(disposition, "filename");
  out.has_file_name = file_name.has_value();
  out.file_name = file_name.value_or("");
}

struct HeaderLine {
  std::string name;  // in small letters
  std::string_view value;
};
HeaderLine read_line(std::string_view line) {
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || !is_token(name))
    throw FormRefused(
        "A part of the form has a header line that is malformed; legal: NAME: VALUE.");
  return {lowercase(std::string(name)), trimmed(line.substr(colon + 1))};
}

}  // namespace

std::string media_type(const HttpRequest& request) {
  const std::string& type = request.header("content-type");
  return lowercase(std::string(trimmed(std::string_view(type).substr(0, type.find(';')))));
}

std::string form_boundary(const std::string& content_type) {
  constexpr std::string_view kMarks = "'()+_,-./:=? ";
  const HeaderValue value = read_header_value(content_type, "Content-Type");
  const std::string* boundary = value.find("boundary");
  if (!boundary) throw FormRefused("The Content-Type of the form names no boundary.");
  const auto legal = [&](char c) {
    return is_letter_or_digit(c) || kMarks.find(c) != std::string_view::npos;
  };
  if (boundary->empty() || boundary->size() > kLongestBoundary || boundary->ends_with(' ') ||
      !std::ranges::all_of(*boundary, legal))
    throw FormRefused(
        "The boundary of the form is illegal; legal: 1 ... 70 of the characters of "
        "RFC 2046.");
  return *boundary;
}

PartHeader read_part_header(std::string_view lines) {
  PartHeader out;
  bool has_disposition = false, has_type = false;
  const auto once = [](bool& seen, const char* header) {
    if (std::exchange(seen, true))
      throw FormRefused(std::string("A part of the form has two headers ") + header + ".");
  };
  if (std::ranges::any_of(lines, [](char c) { return c == '\0' || c == 127; }))
    throw FormRefused("A part of the form has a control character in its header.");
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find("\r\n", begin), lines.size());
    const std::string_view text = lines.substr(begin, end - begin);
    begin = end + 2;
    if (text.find_first_of("\r\n") != std::string_view::npos)
      throw FormRefused(
          "A part of the form has a header line that ends with CR or LF alone; "
          "legal: CR LF.");
    const HeaderLine line = read_line(text);
    if (line.name == "content-disposition") {
      once(has_disposition, "Content-Disposition");
      read_disposition(line.value, out);
    } else if (line.name == "content-type") {
      once(has_type, "Content-Type");
      out.content_type = shown_bytes(line.value);
    } else if (line.name == "content-transfer-encoding") {
      const std::string coding = lowercase(std::string(line.value));
      if (coding != "binary" && coding != "8bit" && coding != "7bit")
        throw FormRefused("A part of the form has the Content-Transfer-Encoding '" +
                          shown_bytes(coding.substr(0, 40)) + "', legal: none.");
    }
  }
  if (out.name.empty())
    throw FormRefused(
        "A part of the form has no name; legal: Content-Disposition: form-data; "
        "name=\"prompt\".");
  const std::string type =
      lowercase(std::string(trimmed(out.content_type.substr(0, out.content_type.find(';')))));
  out.is_file = out.has_file_name || is_type_of_files(type);
  return out;
}

}  // namespace weft

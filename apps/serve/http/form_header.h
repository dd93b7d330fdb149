#pragma once
// Reads the headers of a form and of its parts (RFC 7578, RFC 2046) as clients write them.
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "apps/serve/http/http_message.h"

namespace weft {

// A form that is refused. The text is for the client.
class FormRefused : public std::runtime_error {
 public:
  FormRefused(int refused_with, std::string its_code, const std::string& message,
              std::string field = "")
      : std::runtime_error(message),
        status(refused_with),
        code(std::move(its_code)),
        part(std::move(field)) {}
  // The fault of a form that is malformed.
  explicit FormRefused(const std::string& message, std::string field = "")
      : FormRefused(400, "invalid_request", message, std::move(field)) {}

  HttpResponse response() const { return error_response(status, code, what(), part); }

  int status;
  std::string code, part;  // the name of the part, "" where it is none
};

// The Content-Type of a request in small letters, without its parameters.
std::string media_type(const HttpRequest& request);
inline constexpr std::string_view kFormType = "multipart/form-data";

// The boundary that the Content-Type of a form names. Throws FormRefused.
std::string form_boundary(const std::string& content_type);

struct PartHeader {
  std::string name{}, file_name{}, content_type{};
  bool is_file = false;  // it has a file's name, or is of a type that no text has
  bool has_file_name = false;
};
// Reads the lines of a part's header, which \r\n separates. Throws FormRefused.
PartHeader read_part_header(std::string_view lines);

}  // namespace weft

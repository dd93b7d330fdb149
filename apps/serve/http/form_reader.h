#pragma once
// Reads a form (multipart/form-data, RFC 7578) while its bytes come.
#include <memory>
#include <string>
#include <string_view>

#include "apps/serve/http/form_header.h"
#include "apps/serve/http/http_message.h"
#include "apps/serve/http/http_server.h"
#include "io/sha256.h"

namespace weft {

// Texts are kept in memory, ServerLimits::body_bytes in all, names included. A part with a file's
// name is written to a file of the folder, whatever its name is; so is one whose type is that of a
// picture, a sound, a video or of plain bytes. All functions throw FormRefused; the reader is of no
// use afterwards. How the bytes are split between calls changes nothing.
class FormReader {
 public:
  FormReader(const std::string& boundary, const ServerLimits& limits, std::string folder);
  ~FormReader();
  FormReader(const FormReader&) = delete;
  FormReader& operator=(const FormReader&) = delete;

  void put(std::string_view bytes);
  // The parts in their order. Their files are removed with the last pointer, unless moved away.
  std::shared_ptr<const Form> finish();

 private:
  enum class State { kPreamble, kContent, kAfterBoundary, kHeader, kEnd };
  struct Stored;

  bool step();  // false where more bytes are needed
  bool skip_boundary();
  bool read_header();
  bool read_content();
  void begin_part(const PartHeader& header);
  void add(std::string_view bytes);  // to the part
  void write(std::string_view bytes);
  void end_part();
  void keep_in_memory(size_t bytes);
  [[noreturn]] void refuse_file(int error) const;
  FormPart& part() const;

  const ServerLimits& limits_;
  const std::string folder_;
  const std::string delimiter_;  // "\r\n--" and the boundary
  std::string waiting_;          // bytes that are not read yet
  size_t at_ = 0;                // of waiting_, while put() reads
  State state_ = State::kPreamble;
  size_t bytes_ = 0, kept_ = 0;  // all that came; those in memory
  size_t dropped_ = 0;           // the next bytes, which do not belong to the part
  int count_ = 0;                // of parts
  std::shared_ptr<Stored> stored_;
  std::unique_ptr<Sha256> hash_;  // of the file
  int file_ = -1;                 // that is being written
  bool may_be_unchosen_ = false;  // the file has an empty name
};

}  // namespace weft

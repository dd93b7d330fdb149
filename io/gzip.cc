#include <zlib.h>

#include "io/trace_file.h"
#include "kernels/check.h"

namespace weft {

std::string gzip(const std::string& bytes) {
  constexpr int kGzip = 16;  // added to the window bits, it selects a gzip header instead of zlib's
  z_stream stream{};
  CHECK(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int ended = deflate(&stream, Z_FINISH);
  CHECK(ended == Z_STREAM_END, ended);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace weft

// A function that the program defines stands before that of the library, whose own functions dlsym
// finds.
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include "tests/parallel/library_calls.h"

using weft::test::library_calls;

namespace {
template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
}  // namespace

extern "C" ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h endpoint, const void* data, size_t count,
                                             ucp_tag_t tag, const ucp_request_param_t* param) {
  static auto* const send = next<decltype(ucp_tag_send_nbx)>("ucp_tag_send_nbx");
  library_calls().count(static_cast<int64_t>(count));
  return send(endpoint, data, count, tag, param);
}
extern "C" ucs_status_t ucp_request_check_status(void* request) {
  static auto* const check = next<decltype(ucp_request_check_status)>("ucp_request_check_status");
  return library_calls().fails ? UCS_ERR_IO_ERROR : check(request);
}

void weft::test::end_library() {}

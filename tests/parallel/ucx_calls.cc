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

// Memory that is said to be a device's is the host's here.
ucp_request_param_t of_host(const ucp_request_param_t& given) {
  ucp_request_param_t host = given;
  if (host.memory_type == UCS_MEMORY_TYPE_CUDA) ++library_calls().of_devices;
  host.memory_type = UCS_MEMORY_TYPE_HOST;
  return host;
}
}  // namespace

extern "C" ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h endpoint, const void* data, size_t count,
                                             ucp_tag_t tag, const ucp_request_param_t* param) {
  static auto* const send = next<decltype(ucp_tag_send_nbx)>("ucp_tag_send_nbx");
  library_calls().count(static_cast<int64_t>(count));
  const ucp_request_param_t host = of_host(*param);
  return send(endpoint, data, count, tag, &host);
}
extern "C" ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void* data, size_t count,
                                             ucp_tag_t tag, ucp_tag_t mask,
                                             const ucp_request_param_t* param) {
  static auto* const receive = next<decltype(ucp_tag_recv_nbx)>("ucp_tag_recv_nbx");
  const ucp_request_param_t host = of_host(*param);
  return receive(worker, data, count, tag, mask, &host);
}
extern "C" ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t* given) {
  static auto* const query = next<decltype(ucp_context_query)>("ucp_context_query");
  const ucs_status_t status = query(context, given);
  if (library_calls().takes_device_memory) given->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
  return status;
}
extern "C" ucs_status_t ucp_request_check_status(void* request) {
  static auto* const check = next<decltype(ucp_request_check_status)>("ucp_request_check_status");
  return library_calls().fails ? UCS_ERR_IO_ERROR : check(request);
}

void weft::test::end_library() {}

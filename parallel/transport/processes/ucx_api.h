#pragma once
// UcxApi: the functions of UCX, which is loaded when a job needs it and not with the program. As
// soon as its libraries are loaded they patch the process's mmap and catch its signals.
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <cstdlib>
#include <string>

#include "kernels/check.h"

namespace weft {

class UcxApi {
  // Becomes a pointer to the function of this name.
  struct Symbol {
    const char* name;
    template <class Function>
    operator Function*() const {
      if (void* found = dlsym(RTLD_DEFAULT, name)) return reinterpret_cast<Function*>(found);
      throw Error(ErrorKind::kUsage, std::string("this UCX has no ") + name);
    }
  };
  // Loads the libraries; Error(kUsage) where they are missing.
  static bool load() {
    setenv("UCX_HANDLE_ERRORS", "none", 0);  // signals are the program's, unless the user says so
    if (dlopen("libucp.so.0", RTLD_NOW | RTLD_GLOBAL)) return true;
    throw Error(ErrorKind::kUsage, std::string("UCX cannot be loaded: ") + dlerror() +
                                       "; it is Debian's package libucx0");
  }

  const bool loaded_ = load();  // declared first: the functions below are found afterwards

 public:
  // The one of this process.
  static const UcxApi& get() {
    static const UcxApi api;
    return api;
  }

  decltype(&ucp_get_version_string) get_version_string = Symbol{"ucp_get_version_string"};
  decltype(&ucp_config_read) config_read = Symbol{"ucp_config_read"};
  decltype(&ucp_config_release) config_release = Symbol{"ucp_config_release"};
  decltype(&ucp_init_version) init_version = Symbol{"ucp_init_version"};
  decltype(&ucp_context_query) context_query = Symbol{"ucp_context_query"};
  decltype(&ucp_worker_create) worker_create = Symbol{"ucp_worker_create"};
  decltype(&ucp_worker_query) worker_query = Symbol{"ucp_worker_query"};
  decltype(&ucp_worker_get_address) worker_get_address = Symbol{"ucp_worker_get_address"};
  decltype(&ucp_worker_release_address) worker_release_address =
      Symbol{"ucp_worker_release_address"};
  decltype(&ucp_worker_progress) worker_progress = Symbol{"ucp_worker_progress"};
  decltype(&ucp_worker_destroy) worker_destroy = Symbol{"ucp_worker_destroy"};
  decltype(&ucp_cleanup) cleanup = Symbol{"ucp_cleanup"};
  decltype(&ucp_ep_create) ep_create = Symbol{"ucp_ep_create"};
  decltype(&ucp_ep_close_nbx) ep_close_nbx = Symbol{"ucp_ep_close_nbx"};
  decltype(&ucp_tag_send_nbx) tag_send_nbx = Symbol{"ucp_tag_send_nbx"};
  decltype(&ucp_tag_recv_nbx) tag_recv_nbx = Symbol{"ucp_tag_recv_nbx"};
  decltype(&ucp_request_check_status) request_check_status = Symbol{"ucp_request_check_status"};
  decltype(&ucp_request_cancel) request_cancel = Symbol{"ucp_request_cancel"};
  decltype(&ucp_request_free) request_free = Symbol{"ucp_request_free"};
  decltype(&ucs_status_string) status_string = Symbol{"ucs_status_string"};
};

}  // namespace weft

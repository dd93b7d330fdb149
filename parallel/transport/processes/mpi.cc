#include "parallel/transport/processes/mpi.h"

#include <mpi.h>

#include <cstdlib>

#include "kernels/check.h"
#include "parallel/bootstrap/startup_watch.h"

// An extension of Open MPI (mpi-ext.h), which others have taken over. It is declared here, and
// weakly, because not every build of an MPI has it.
extern "C" [[gnu::weak]] int MPIX_Query_cuda_support();

namespace weft {

namespace {

constexpr double kStartupSeconds = 60;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorKind::kComm, std::string(call) + ": " + std::string(text, length));
}

// The messages of MPI_COMM_WORLD. A lane is a tag: MPI keeps the order of messages with one tag,
// and the few tags that there are stay below every MPI's limit (MPI_TAG_UB).
class MpiMessages final : public PointToPoint {
 public:
  MpiMessages() {
    int given = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
    if (given < MPI_THREAD_SERIALIZED)
      throw Error(ErrorKind::kComm, "this MPI cannot be called from several threads in turn");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    takes_device_memory_ = mpi_takes_device_memory().value();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool takes_device_memory() const override { return takes_device_memory_; }

  // MPI finds out by itself where memory lies.
  Request send(int peer, Lane lane, const void* data, int64_t bytes, Device) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, static_cast<int>(lane),
                        MPI_COMM_WORLD, &request),
              "MPI_Isend");
    return request;
  }

  Request receive(int peer, Lane lane, void* data, int64_t bytes, Device) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, static_cast<int>(lane),
                        MPI_COMM_WORLD, &request),
              "MPI_Irecv");
    return request;
  }

  bool finished(Request& request) override {
    if (!request) return true;
    int done = 0;
    auto under_way = static_cast<MPI_Request>(request);
    check_mpi(MPI_Test(&under_way, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done) request = nullptr;
    return done;
  }

  void cancel(Request& request) override {
    auto under_way = static_cast<MPI_Request>(request);
    MPI_Cancel(&under_way);
    MPI_Wait(&under_way, MPI_STATUS_IGNORE);
    request = nullptr;
  }

  void finish() override { MPI_Finalize(); }

 private:
  int rank_ = 0, size_ = 1;
  bool takes_device_memory_ = false;
};

std::string broadcast_of(const std::string& text) {
  auto size = static_cast<int64_t>(text.size());
  check_mpi(MPI_Bcast(&size, 1, MPI_INT64_T, 0, MPI_COMM_WORLD), "MPI_Bcast");
  std::string shared = text;
  shared.resize(static_cast<size_t>(size));
  check_mpi(MPI_Bcast(shared.data(), static_cast<int>(size), MPI_BYTE, 0, MPI_COMM_WORLD),
            "MPI_Bcast");
  return shared;
}

}  // namespace

bool mpi_built() { return true; }

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);  // may be called before MPI_Init
  return {text, static_cast<size_t>(length)};
}

std::optional<bool> mpi_takes_device_memory() {
  if (!MPIX_Query_cuda_support) return false;
  if (MPIX_Query_cuda_support() == 1) return true;
  int started = 0;
  MPI_Initialized(&started);
  if (!started && OMPI_MAJOR_VERSION >= 5) return std::nullopt;
  return false;
}

ProcessMessages make_mpi_messages(const Launch& launch,
                                  const std::function<void(const std::string&)>& late) {
  // MPI_Init waits for every rank, however long.
  const char* folder = std::getenv("PMIX_SERVER_TMPDIR");  // a folder of this job on this host
  const StartupWatch watch(folder ? folder : "", launch.rank, launch.ranks, launch.ranks_here,
                           kStartupSeconds, late);
  // Uses the network that the user chose for MPI, or the loopback where all ranks are on one host.
  const char* chosen = std::getenv("OMPI_MCA_btl_tcp_if_include");
  return {.messages = std::make_unique<MpiMessages>(),
          .share = broadcast_of,
          .interfaces = chosen              ? chosen
                        : launch.one_host() ? "lo"
                                            : ""};
}

}  // namespace weft

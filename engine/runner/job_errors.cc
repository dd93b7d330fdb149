#include "engine/runner/job_errors.h"

#include <filesystem>
#include <new>
#include <string>
#include <string_view>

#include "parallel/communicator.h"

namespace weft {

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return {ErrorKind::kOutput, error.what()};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kMemory, "out of memory"};
  } catch (const std::exception& error) {
    return {ErrorKind::kInternal, error.what()};
  }
}

std::exception_ptr why_not_begun(const RankPlacement& placement,
                                 const std::function<void()>& check) {
  struct Row {
    int64_t kind = -1;  // an ErrorKind; -1: nothing
    char text[1016] = {};
  };
  static_assert(sizeof(Row) == 1024);
  Row own;
  try {
    check();
  } catch (...) {
    const Error error = current_error();
    own.kind = static_cast<int64_t>(error.kind());
    own.text[std::string_view(error.what()).copy(own.text, sizeof own.text - 1)] = 0;
  }
  const auto view = [](Row& row) { return TensorView(&row, DType::kU8, {int64_t{sizeof row}}); };
  const Communicator& world = placement.communicator();
  Row other;
  std::exception_ptr failed;
  Stream stream = Stream::cpu(1);
  placement.communicator().gather_v(
      stream, {.kind = Payload::kControl, .topic = Topic::kCheck}, view(own),
      [&](int rank) { return view(rank == 0 ? own : other); },
      [&](int rank, const TensorView&) {
        const Row& row = rank == 0 ? own : other;
        const std::string who =
            rank == 0 ? "" : "rank " + std::to_string(world.world_rank(rank)) + ": ";
        if (!failed && row.kind >= 0)
          failed = std::make_exception_ptr(Error(static_cast<ErrorKind>(row.kind), who + row.text));
      });
  return failed;
}

}  // namespace weft

#pragma once
// There are three kinds of failure: CHECK is for a bug (it prints the operands and aborts), Error
// is for the environment or bad input (it is thrown, and only apps catch it), and expected outcomes
// are return values.
#include <sstream>
#include <stdexcept>
#include <string>

namespace weft {

// The numeric value is the process's exit code.
enum class ErrorKind {
  kInternal = 1,
  kUsage = 2,
  kModel = 3,      // model or weights rejected
  kMemory = 4,     // memory plan refused or out of memory
  kNonFinite = 5,  // NaN or infinity in the results
  kComm = 6,       // communicator failure or timeout
  kOutput = 7,     // output could not be written
  kMedia = 8,      // input media rejected
  kStopped = 75,   // stopped early, resumable
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& values);

template <class... Ts>
std::string format_values(const Ts&... values) {
  std::ostringstream out;
  ((out << ' ' << values), ...);
  return out.str();
}
}  // namespace detail

}  // namespace weft

// A broken precondition is a bug in the caller: print the condition and the operands, then abort.
#define CHECK(condition, ...)                                                   \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::weft::detail::check_failed(__FILE__, __LINE__, #condition,              \
                                   ::weft::detail::format_values(__VA_ARGS__)); \
  } while (0)

#ifdef NDEBUG
#define DCHECK(condition, ...) \
  do {                         \
  } while (0)
#else
#define DCHECK(condition, ...) CHECK(condition, __VA_ARGS__)
#endif

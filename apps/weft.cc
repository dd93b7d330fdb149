// The one binary: finds the command, parses its flags, and turns errors into one line and an exit
// code.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <thread>

#include "apps/command_line/help.h"
#include "apps/command_line/process_place.h"
#include "apps/command_line/suggest.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/resume.h"
#include "apps/generate/stop.h"
#include "io/part_file.h"
#include "kernels/check.h"
#include "models/presets.h"
#include "parallel/bootstrap/meeting.h"
#include "parallel/transport/nccl.h"
#include "parallel/transport/processes/process_transport.h"

namespace weft {
namespace {

std::atomic<int> g_signal{0};       // the three are written by the handler alone
std::atomic<int64_t> g_stop_ms{0};  // the time of the first signal
int g_hurry[2] = {-1, -1};          // a pipe that carries the second signal's number
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// Batch systems send SIGUSR1 before a job's time ends; the stopped job can be resumed.
int code_of(int signal) {
  return signal == SIGUSR1 ? static_cast<int>(ErrorKind::kStopped) : 128 + signal;
}

// mpirun, timeout and terminals send one signal to a process and again to its group. A signal that
// comes so soon after the first is the same one.
constexpr int64_t kSameMs = 100;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
}

// On Ctrl-C mpirun sends SIGTERM to its processes, and SIGKILL one second later unless it was told
// otherwise. A process that has not stopped by half of that time ends by itself, which leaves
// enough time on a busy machine. 0: this process was not started by mpirun.
std::atomic<int> g_killed_after_ms{0};

int killed_after_ms() {
  if (!std::getenv("OMPI_COMM_WORLD_RANK")) return 0;
  const char* seconds = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");
  return static_cast<int>(std::clamp(seconds ? std::atof(seconds) : 1.0, 0.5, 1e6) * 1000);
}

void to_waiting_thread(char byte) { (void)!write(g_hurry[1], &byte, 1); }

extern "C" void on_signal(int number, siginfo_t* info, void*) {
  if (!stop_requested()) {
    g_signal = number;
    g_stop_ms = now_ms();
    request_stop();
    // Only mpirun, the parent, is known to kill later.
    if (number == SIGTERM && info->si_pid == getppid() && g_killed_after_ms) to_waiting_thread(0);
    return;
  }
  if (now_ms() - g_stop_ms < kSameMs) return;
  // The second signal stops at once. Should that hang, a third one kills by the default action.
  std::signal(number, SIG_DFL);
  to_waiting_thread(static_cast<char>(number));
}

// Runs on a thread of its own. It waits for the second signal, or until shortly before mpirun
// kills, then removes half-written files and ends the process.
void await_hurry() {
  char number = 0;
  if (read(g_hurry[0], &number, 1) != 1) return;
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (number == 0) {
    pollfd second{.fd = g_hurry[0], .events = POLLIN, .revents = 0};
    if (poll(&second, 1, g_killed_after_ms / 2) == 0) {
      remove_parts();
      if (std::string(rank) == "0")
        std::fprintf(
            stderr,
            "weft: stopped at once: mpirun kills its processes %g s after Ctrl-C. The last "
            "checkpoint is kept; kill -USR1 on mpirun waits for the end of the step\n",
            g_killed_after_ms / 1000.0);
      _exit(code_of(SIGTERM));
    }
    if (read(g_hurry[0], &number, 1) != 1) return;
  }
  remove_parts();
  std::fprintf(stderr, "weft: stopped at once\n");
  _exit(code_of(number));
}

void heed_signals() {
  g_killed_after_ms = killed_after_ms();
  if (pipe2(g_hurry, O_CLOEXEC) == 0) std::thread(await_hurry).detach();
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit makes write() fail and does not kill
}

// Reading beyond the end of a mapped weights file, which was cut short meanwhile, raises SIGBUS.
extern "C" void on_bus_error(int) {
  constexpr char kLine[] =
      "weft: a mapped weights file became shorter or unreadable while it was in use\n";
  (void)!write(STDERR_FILENO, kLine, sizeof kLine - 1);
  _exit(static_cast<int>(ErrorKind::kModel));
}

// The help that the arguments ask for, if any.
std::optional<FlagLevel> help_asked(std::span<const std::string> arguments) {
  const auto has = [&](const char* word) {
    return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
  };
  if (has("--help-all") || has("--help_all")) return FlagLevel::kAdvanced;
  if (has("--help") || has("-h")) return FlagLevel::kBasic;
  return std::nullopt;
}

// libgomp reads its settings before main. Its default lets idle threads spin for milliseconds,
// which on a shared machine takes the cores from the threads that have work (a clip became ten
// times slower); so a command that computes starts over once with a short spin, unless the user
// chose.
void restart_with_short_spin(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);
  execv("/proc/self/exe", argv);  // where that fails, the defaults stay
}

std::string line_of(const Error& error) { return "weft: " + printable(error.what()) + "\n"; }

// Ends a job that may be one of several processes.
int finished(int code) {
  finish_process_transport();
  return code;
}

// Ends a job whose processes have all agreed on its end.
int ended(int code) {
  try {
    return finished(code);
  } catch (const Error& error) {
    std::fputs(line_of(error).c_str(), stderr);
    return static_cast<int>(error.kind());
  }
}

bool is_agreed(const Error& error) { return dynamic_cast<const AgreedError*>(&error); }

// Ends a process after an error of usage. The first process alone prints one that all have; what
// another one has alone, it prints itself. Under mpirun, which ends all processes when one has
// ended with an error, the others wait until the first one has printed its error: who is still
// there afterwards is alone with its own. Elsewhere the others ask the first process.
int misused(const std::string& text, const ProcessPlace& place) {
  const Launch& launch = place.launch;
  const bool first = launch.rank == 0;
  bool prints = first;
  if (first) std::fputs(text.c_str(), stderr);
  if (launch.launcher == Launcher::kMpirun && mpirun_above() != 0) {
    if (!first) std::this_thread::sleep_for(std::chrono::seconds(3));
    prints = !stop_requested();
  } else if (launch.ranks > 1 && !place.point.host.empty()) {
    prints = !Meeting::share_failure(launch.rank, launch.ranks, place.point);
  } else if (!first) {  // without a point to meet the first one has an error, too
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (prints && !first) std::fputs(text.c_str(), stderr);
  return static_cast<int>(ErrorKind::kUsage);
}

int run(Command command, std::span<const std::string> arguments, bool first) {
  if (const auto level = help_asked(arguments)) {
    std::fputs(help_text(command, *level).c_str(), stdout);
    return 0;
  }
  const Flags given = Flags::parse(command, arguments);
  const Flags flags = command == kGenerate ? flags_to_resume(given, arguments) : given;
  for (const std::string& warning : command == kDoctor || !first
                                        ? std::vector<std::string>()  // doctor lists them
                                        : unknown_environment())
    std::fprintf(stderr, "weft: warning: %s\n", warning.c_str());
  if (flags.on("print-config")) {
    std::fputs((flags.on("json") ? flags.to_json() : flags.to_string()).c_str(), stdout);
    return 0;
  }
  if (find_flag(command, "preset") && flags.text("preset") == "list") {
    if (first) std::fputs(presets_text().c_str(), stdout);
    return 0;
  }
  std::signal(SIGBUS, on_bus_error);
  heed_signals();
  switch (command) {
    case kGenerate:
      return finished(run_generate(flags));
    case kBatch:
      return finished(run_batch(flags));
    case kServe:
      return finished(run_serve(flags));
    case kWorker:
      return finished(run_worker(flags));
    case kStream:
      return finished(run_stream(flags));
    case kComplete:
      return finished(run_complete(flags));
    case kVerify:
      return finished(run_verify(flags));
    case kPlan:
      return run_plan(flags);
    case kInspect:
      return run_inspect(flags);
    case kCompare:
      return run_compare(flags);
    case kReplay:
      return run_replay(flags);
    case kDoctor:
      return finished(run_doctor(flags));
    case kCompletion:
      return run_completion(flags);
    default:
      return finished(run_bench(flags));
  }
}

Command command_of(const std::string& word) {
  std::vector<std::string> names{"help", "version"};
  std::string legal;
  for (const CommandSpec& spec : command_table()) {
    if (word == spec.name) return spec.command;
    names.push_back(spec.name);
    legal += spec.name + std::string(", ");
  }
  throw Error(ErrorKind::kUsage, "no command '" + word + "'; legal: " + legal + "help, version" +
                                     did_you_mean(nearest(word, names)));
}

int main_checked(char** argv, std::span<const std::string> arguments, const ProcessPlace& place) {
  set_program_name(argv[0]);
  if (arguments.empty()) return misused(help_text(), place);
  const std::string& word = arguments.front();
  if (word == "--version" || word == "version") {
    std::printf("%s\nlicence: Apache-2.0; NOTICE lists the libraries and their licences\n",
                version_text().c_str());
    return 0;
  }
  const bool asks_help = word == "help" || word == "-h" || help_asked({&word, 1});
  if (asks_help && arguments.size() == 1) {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  if (asks_help) {  // weft help generate
    const bool all = help_asked(arguments) == FlagLevel::kAdvanced;
    std::fputs(help_text(command_of(arguments[1] == "--help-all" ? arguments.back() : arguments[1]),
                         all ? FlagLevel::kAdvanced : FlagLevel::kBasic)
                   .c_str(),
               stdout);
    return 0;
  }
  const Command command = command_of(word);
  constexpr unsigned kComputing = kGenerate | kBatch | kServe | kWorker | kStream | kComplete |
                                  kVerify | kPlan | kBench | kReplay;
  if ((command & kComputing) && !help_asked(arguments)) restart_with_short_spin(argv);
  keep_device_plans();
  return run(command, arguments.subspan(1), place.launch.rank == 0);
}

}  // namespace

}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const ProcessPlace place = place_of_arguments(arguments);
  if (place.launch.ranks > 1) prepare_nccl_environment();
  try {
    return main_checked(argv, arguments, place);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kUsage && !is_agreed(error))
      return misused(line_of(error), place);
    // All processes stop, and all have an agreed error.
    const bool alike = error.kind() == ErrorKind::kStopped || is_agreed(error);
    if (!alike || place.launch.rank == 0) std::fputs(line_of(error).c_str(), stderr);
    if (error.kind() == ErrorKind::kStopped && g_signal) return ended(code_of(g_signal));
    const int code = static_cast<int>(error.kind());
    return is_agreed(error) ? ended(code) : code;
  } catch (const std::bad_alloc&) {
    std::fputs("weft: out of memory\n", stderr);
    return static_cast<int>(ErrorKind::kMemory);
  } catch (const std::filesystem::filesystem_error& error) {  // thrown where results are written
    std::fprintf(stderr, "weft: %s\n", printable(error.what()).c_str());
    return static_cast<int>(ErrorKind::kOutput);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: internal error: %s\n", printable(error.what()).c_str());
    return static_cast<int>(ErrorKind::kInternal);
  }
}

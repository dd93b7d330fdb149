#include "apps/worker/worker_processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

#include "apps/commands.h"
#include "apps/worker/messages.h"

extern char** environ;

namespace weft {
namespace {

using std::chrono::steady_clock;

constexpr int kLookMs = 100;  // between looks for processes that ended
// The time in which processes end that were asked to, or whose team has lost another.
constexpr std::chrono::seconds kEndTime{20};
constexpr int kHopelessEnds = 5;

// A port of the loopback that is free now.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) close(fd);
  if (!bound) throw Error(ErrorKind::kComm, "no free port: " + std::string(strerror(errno)));
  return ntohs(address.sin_port);
}

// This process's environment with other variables, "NAME=value".
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> all = variables;
  for (char** at = environ; *at; ++at) {
    const std::string_view old = *at, name = old.substr(0, old.find('=') + 1);
    if (std::ranges::none_of(variables, [&](const std::string& v) { return v.starts_with(name); }))
      all.emplace_back(old);
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts a program with these arguments. It gets SIGTERM when the calling thread ends, so that
// no worker outlives its server.
pid_t start_process(const std::string& program, std::vector<std::string> arguments,
                    std::vector<std::string> environment, int output) {
  const std::vector<char*> words = pointers_to(arguments), variables = pointers_to(environment);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = getpid(), child = fork();
  if (child == 0) {  // calls alone that are safe after a fork among threads
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    dup2(nothing, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execve(program.c_str(), words.data(), variables.data());
    _exit(127);
  }
  close(nothing);
  if (child < 0) throw Error(ErrorKind::kComm, "fork: " + std::string(strerror(errno)));
  return child;
}

std::string end_text(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

std::vector<std::string> worker_arguments(const Flags& flags) {
  std::vector<std::string> arguments{"--quiet"};
  for (const FlagSpec& spec : flag_table()) {
    const std::string name = spec.name;
    constexpr unsigned kBoth = kServe | kWorker;
    if ((spec.commands & kBoth) != kBoth || !flags.given(name)) continue;
    const bool follows = flags.origin(name).starts_with("layout ");  // as the worker's own will
    const bool own = name == "config" || name == "json" || name == "quiet";
    if (!own && !follows) arguments.push_back("--" + name + "=" + flags.text(name));
  }
  return arguments;
}

// The processes of a team, and the pipe of their output.
struct WorkerProcesses::Running {
  std::vector<pid_t> processes{};  // that have not ended
  int output = -1;
  std::string line{};  // begun
  std::string end{};   // of the first that ended
};

WorkerProcesses::WorkerProcesses(Settings settings) : settings_(std::move(settings)) {
  teams_.resize(settings_.teams);
  for (size_t i = 0; i < teams_.size(); ++i) {
    teams_[i].name = "worker-" + std::to_string(i);
    teams_[i].thread = std::thread([this, i] { keep(teams_[i]); });
  }
}

WorkerProcesses::~WorkerProcesses() {
  {
    const std::lock_guard lock(mutex_);
    shall_end_ = true;
    changed_.notify_all();
  }
  for (Team& team : teams_) team.thread.join();
}

void WorkerProcesses::drain() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
  changed_.notify_all();
}

void WorkerProcesses::heard(const std::string& worker, WorkerEvent event) {
  const std::lock_guard lock(mutex_);
  for (Team& team : teams_) {
    if (team.name != worker) continue;
    team.ready = event != WorkerEvent::kGone;
    team.was_ready |= team.ready;
    if (event == WorkerEvent::kDrew) team.unused_ends = 0;
  }
}

int WorkerProcesses::ready() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::ranges::count_if(teams_, &Team::ready));
}

bool WorkerProcesses::hopeless() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(
      teams_, [](const Team& team) { return !team.ready && team.unready_ends >= kHopelessEnds; });
}

bool WorkerProcesses::shall_end() const {
  const std::lock_guard lock(mutex_);
  return shall_end_;
}

// False where no team is to be started any more.
bool WorkerProcesses::pause(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return shall_end_ || is_draining_; });
  return !shall_end_ && !is_draining_;
}

// A team's thread.
void WorkerProcesses::keep(Team& team) {
  const auto tell = [&](const std::string& line) {
    if (settings_.told) settings_.told(team.name, line);
  };
  double seconds = 0;
  while (pause(seconds)) {
    Running running;
    try {
      start(team, running);
    } catch (const Error& error) {
      running.end = error.what();
    }
    await_end(team, running);
    if (!running.end.empty()) tell(running.end);
    const std::lock_guard lock(mutex_);
    team.unready_ends = team.was_ready ? 0 : team.unready_ends + 1;
    team.ready = team.was_ready = false;
    seconds = std::min(settings_.first_pause_s * (1 << std::min(team.unused_ends++, 20)),
                       settings_.longest_pause_s);
  }
}

void WorkerProcesses::start(const Team& team, Running& running) const {
  std::vector<std::string> arguments{program_name(), "worker", "--join=" + settings_.join,
                                     "--worker-name=" + team.name};
  arguments.insert(arguments.end(), settings_.arguments.begin(), settings_.arguments.end());
  std::vector<std::string> variables{std::string(kWorkerKeyVariable) + "=" + settings_.key};
  const std::string count = std::to_string(settings_.processes);
  if (settings_.processes > 1)
    for (const std::string& variable :
         {"WORLD_SIZE=" + count, "LOCAL_WORLD_SIZE=" + count, std::string("MASTER_ADDR=127.0.0.1"),
          "MASTER_PORT=" + std::to_string(free_port())})
      variables.push_back(variable);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorKind::kComm, "pipe: " + std::string(strerror(errno)));
  running.output = ends[0];
  for (int rank = 0; rank < settings_.processes; ++rank) {
    std::vector<std::string> own = variables;
    if (settings_.processes > 1) {
      own.push_back("RANK=" + std::to_string(rank));
      own.push_back("LOCAL_RANK=" + std::to_string(rank));
    }
    running.processes.push_back(
        start_process(settings_.program, arguments, environment_with(own), ends[1]));
  }
  close(ends[1]);
}

// Passes on what the processes write, until all have ended. When one has, or the server ends, the
// others have some seconds to end by themselves.
void WorkerProcesses::await_end(const Team& team, Running& running) {
  fcntl(running.output, F_SETFL, O_NONBLOCK);
  std::optional<steady_clock::time_point> limit;
  const auto send = [&](int signal) {
    for (const pid_t process : running.processes) kill(process, signal);
  };
  const auto take_output = [&] {
    char bytes[4096];
    for (ssize_t n; (n = read(running.output, bytes, sizeof bytes)) > 0;)
      for (const char c : std::string_view(bytes, static_cast<size_t>(n)))
        if (c != '\n')
          running.line += c;
        else if (settings_.told)
          settings_.told(team.name, std::exchange(running.line, ""));
  };
  for (bool asked = false; !running.processes.empty();) {
    pollfd readable{running.output, POLLIN, 0};
    poll(&readable, 1, kLookMs);
    take_output();
    std::erase_if(running.processes, [&](pid_t process) {
      int status = 0;
      if (waitpid(process, &status, WNOHANG) != process) return false;
      if (running.end.empty() && !asked) running.end = end_text(status);
      return true;
    });
    if (!asked && shall_end()) {
      asked = true;
      send(SIGTERM);
    }
    if (!limit && (asked || !running.end.empty())) limit = steady_clock::now() + kEndTime;
    if (limit && steady_clock::now() > *limit) send(SIGKILL);
  }
  take_output();
  close(running.output);
}

}  // namespace weft

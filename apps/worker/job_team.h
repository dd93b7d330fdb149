#pragma once
// JobTeam: draws jobs one after the other on the ranks of a command line, which keep their weights.
// The first of ranks that are processes is given the jobs, and the others follow it.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/scratch_folder.h"
#include "engine/language/expand_prompt.h"
#include "engine/runner/job_runner.h"

namespace weft {

// A job that can be handed from process to process.
struct TeamJob {
  std::string spec{};    // JSON of the whole JobSpec
  std::string output{};  // the path of its result
};

// The hash of what a generator's frames depend on beside the request, which states its LoRAs. Two
// programs of one hash draw the same jobs.
std::string program_of(const Generator& generator);
// The same in earlier versions, where a program drew all its jobs with these LoRAs. Error(kModel),
// kUsage where they cannot be opened.
std::string earlier_program_of(const Generator& generator, const std::vector<Lora>& loras);

// The result of JobTeam::draw() for a file that was drawn, with the caption that a language model
// wrote for it.
std::string result_text(const std::string& path, const std::string& framehash, int64_t frames,
                        const std::string& caption = "");

class JobTeam {
 public:
  // Finds the ranks and opens the model, unless it is given. Teams may share the language model
  // that writes captions; null: jobs that want one are refused. Error(kUsage) where processes would
  // be replicas.
  explicit JobTeam(const Flags& flags, std::shared_ptr<PromptExpander> expander = nullptr,
                   std::shared_ptr<const OpenModel> model = nullptr);
  ~JobTeam();  // in the first process, it lets follow() return in the others, as end() does

  const JobRunner& runner() const { return runner_; }
  bool expands() const { return expander_ != nullptr; }  // whether a job may want a caption
  bool leads() const { return !runner_.ranks().processes || runner_.ranks().first == 0; }

  // Called in the first process: draws, and returns the result as JSON, {"path", "content_type",
  // "framehash", "frames", "bytes", "sha256"}. Error(kStopped) where it ended because `stop` became
  // true.
  std::string draw(const TeamJob& job, ProgressListener& listener, const std::atomic<bool>& stop);
  // True where a failure within a job has ended the ranks, which are processes: this one ends, too.
  bool broken() const { return broken_; }
  // Called in the first process, after which nothing is drawn: lets follow() return in the others.
  void end();
  // Called in the other processes: draws what the first one draws, asleep in between. Error(kComm)
  // where a process is gone.
  void follow();
  // Draws one picture of the default size in one step, so that the weights are loaded.
  void warm_up(const std::atomic<bool>& stop);

 private:
  enum class Order : int64_t { kDraw, kEnd };
  void tell(Order order);
  Order await_order();
  std::string draw_together(const TeamJob& given, ProgressListener& listener,
                            const std::atomic<bool>& stop);
  Drawing agreed_drawing(const TeamJob& job, const std::atomic<bool>& stop);
  void expand(JobSpec& spec, const std::atomic<bool>& stop);
  uint64_t kept_beside(const std::atomic<bool>& stop);
  Request any_request(const ScratchFolder& scratch) const;

  const Flags flags_;
  const std::shared_ptr<PromptExpander> expander_;
  JobRunner runner_;
  std::optional<Communicator> world_{};  // of processes
  std::atomic<bool> broken_{false};
  bool ended_ = false;
};

}  // namespace weft

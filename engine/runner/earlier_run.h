#pragma once
// The rules by which a job goes on from the files that an interrupted run of it has left.
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/generation/generator.h"
#include "engine/runner/reporter.h"
#include "engine/runner/result_files.h"

namespace weft {

struct ResumeRule {
  bool never = false;      // jobs begin anew
  bool overwrite = false;  // damaged checkpoints may be replaced
  bool named = false;  // the user named the checkpoint, so that those of another job are refused
};

// The newest readable checkpoint at `names`. What is wrong with others is told when the job is
// resumed.
std::optional<Checkpoint> checkpoint_left(const ResumeRule& rule, const OutputNames& names);

// The first whole file among latents, checkpoint and the checkpoint before. Null where there is
// none. Error(kUsage) where all are damaged or belong to another job, unless the rule lets the job
// start over. The reporter hears what was found; `version` is that of this program.
std::shared_ptr<Checkpoint> left_by_earlier_run(const ResumeRule& rule, const Reporter& reporter,
                                                const std::string& version,
                                                const std::string& record,
                                                const OutputNames& names);

// The seed of an interrupted job at `names`, for a job whose user gave none.
std::optional<uint64_t> seed_left(const ResumeRule& rule, const OutputNames& names);
// The layout of an interrupted job at `names` if it is one of `legal`, else "".
std::string layout_left(const ResumeRule& rule, const OutputNames& names,
                        std::span<const Layout> legal);

}  // namespace weft

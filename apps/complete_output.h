#pragma once
// What weft complete prints: one completion as its tokens come, several one behind the other.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/language.h"
#include "io/byte_bpe.h"

namespace weft {

enum class CompletionStyle : uint8_t { kText, kJson };

// Error(kOutput) where `out` takes no more.
class CompletionPrinter {
 public:
  // `prompts`, as they were given, and the tokenizer outlive it.
  CompletionPrinter(const ByteBpeTokenizer& tokenizer, std::span<const std::string> prompts,
                    std::span<const CompletionRequest> requests, CompletionStyle style,
                    FILE* out = stdout);

  void token(int request, int32_t id);
  void end(int request, const Completion& completion);
  // A line of JSON behind them.
  void line(const nlohmann::json& object);

 private:
  void print_ended(int request, const Completion& completion);
  void write(const std::string& text);

  const ByteBpeTokenizer& tokenizer_;
  std::span<const std::string> prompts_;
  std::span<const CompletionRequest> requests_;
  CompletionStyle style_;
  FILE* out_;
  bool terminal_;
  StreamingDecoder stream_;
  bool at_line_start_ = false;
  std::vector<std::optional<Completion>> waiting_;  // ended before an earlier one did
  size_t next_ = 0;
};

// A line on standard error for each ten seconds in which nothing was heard.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Silence(FILE* out = stderr, Clock::duration every = std::chrono::seconds(10));
  void doing(const std::string& what);  // "loading the model"
  void heard();                         // a token

 private:
  void tick(const std::stop_token& stop);

  FILE* const out_;
  const Clock::duration every_;
  std::mutex mutex_;  // of what follows
  std::condition_variable_any stopping_;
  std::string what_;
  Clock::time_point since_ = Clock::now(), heard_at_ = since_;
  std::jthread ticker_;  // last: it uses all of the above
};

// Tokens per second behind the first one; 0 where there is no second.
double decode_rate(const Completion& completion);

}  // namespace weft

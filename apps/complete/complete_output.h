#pragma once
// The output of weft complete: a single completion token by token, several one after the other.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/language/language.h"
#include "io/json.h"
#include "io/text/byte_bpe.h"

namespace weft {

enum class CompletionStyle : uint8_t { kText, kJson };

// Prints completions. Error(kOutput) where `out` cannot be written.
class CompletionPrinter {
 public:
  // The tokenizer, the prompts and the requests must outlive the printer.
  CompletionPrinter(const ByteBpeTokenizer& tokenizer, std::span<const std::string> prompts,
                    std::span<const CompletionRequest> requests, CompletionStyle style,
                    FILE* out = stdout);

  void token(int request, int32_t id);
  void end(int request, const Completion& completion);
  // Prints a line of JSON after them.
  void line(const Json& object);

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

// Prints a line on standard error after every ten seconds without a sign of life.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Silence(FILE* out = stderr, Clock::duration every = std::chrono::seconds(10));
  void doing(const std::string& what);  // "loading the model"
  void heard();                         // a token was written

 private:
  void tick(const std::stop_token& stop);

  FILE* const out_;
  const Clock::duration every_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable_any stopping_;
  std::string what_;
  Clock::time_point since_ = Clock::now(), heard_at_ = since_;
  std::jthread ticker_;  // declared last, because it uses the members above
};

// Tokens per second after the first token; 0 where there is no second.
double decode_rate(const Completion& completion);

}  // namespace weft

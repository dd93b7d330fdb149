#pragma once
// What weft complete prints: one completion as its tokens come, several one behind the other.
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
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

// Tokens per second behind the first one; 0 where there is no second.
double decode_rate(const Completion& completion);

}  // namespace weft

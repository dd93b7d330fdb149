#include "apps/complete/complete_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/check.h"

namespace weft {
namespace {

const char* name_of(Completion::End end) {
  switch (end) {
    case Completion::End::kStopId:
      return "stop";
    case Completion::End::kMaxTokens:
      return "length";
    default:
      return "interrupted";
  }
}

// Removes control characters: a model's text must not steer the terminal.
std::string tame(std::string text) {
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

// The first line of a prompt, shortened where it is long.
std::string heading(const std::string& prompt) {
  constexpr size_t kMost = 72;
  std::string text = prompt.substr(0, prompt.find('\n'));
  if (text.size() <= kMost) return text;
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace

CompletionPrinter::CompletionPrinter(const ByteBpeTokenizer& tokenizer,
                                     std::span<const std::string> prompts,
                                     std::span<const CompletionRequest> requests,
                                     CompletionStyle style, FILE* out)
    : tokenizer_(tokenizer),
      prompts_(prompts),
      requests_(requests),
      style_(style),
      out_(out),
      terminal_(isatty(fileno(out)) != 0),
      stream_(tokenizer, SpecialTokens::kSkip),
      waiting_(prompts.size()) {}

void CompletionPrinter::write(const std::string& text) {
  const std::string shown = terminal_ ? tame(text) : text;
  if (std::fwrite(shown.data(), 1, shown.size(), out_) != shown.size() || std::fflush(out_) != 0)
    throw Error(ErrorKind::kOutput, std::string("standard output: ") + std::strerror(errno));
}

void CompletionPrinter::token(int, int32_t id) {
  if (style_ == CompletionStyle::kJson || prompts_.size() > 1) return;
  const std::string text = stream_.push(id);
  if (text.empty()) return;
  write(text);
  at_line_start_ = text.ends_with('\n');
}

void CompletionPrinter::end(int request, const Completion& completion) {
  waiting_[request] = completion;
  for (; next_ < waiting_.size() && waiting_[next_]; ++next_)
    print_ended(static_cast<int>(next_), *waiting_[next_]);
}

void CompletionPrinter::print_ended(int request, const Completion& completion) {
  if (style_ == CompletionStyle::kText && prompts_.size() == 1) {
    const std::string rest = stream_.finish();
    if (!rest.empty()) at_line_start_ = false;
    write(at_line_start_ ? rest : rest + "\n");
    return;
  }
  const std::string text = tokenizer_.decode(completion.ids, SpecialTokens::kSkip);
  if (style_ == CompletionStyle::kText) {
    if (completion.end == Completion::End::kCut && completion.ids.empty()) return;  // not begun
    write("[" + std::to_string(request + 1) + "] " + heading(prompts_[request]) + "\n" + text +
          (text.ends_with('\n') ? "\n" : "\n\n"));
    return;
  }
  line({{"prompt", request},
        {"text", text},
        {"tokens", completion.ids.size()},
        {"prompt_tokens", requests_[request].prompt.size()},
        {"end", name_of(completion.end)},
        {"first_token_s", completion.first_token_s},
        {"seconds", completion.seconds},
        {"tokens_per_s", decode_rate(completion)}});
}

void CompletionPrinter::line(const Json& object) { write(object.dump() + "\n"); }

Silence::Silence(FILE* out, Clock::duration every)
    : out_(out), every_(every), ticker_([this](const std::stop_token& stop) { tick(stop); }) {}

void Silence::doing(const std::string& what) {
  const std::lock_guard lock(mutex_);
  what_ = what;
  since_ = heard_at_ = Clock::now();
}

void Silence::heard() {
  const std::lock_guard lock(mutex_);
  heard_at_ = Clock::now();
}

void Silence::tick(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (stopping_.wait_until(lock, stop, heard_at_ + every_, [] { return false; })) return;
    if (stop.stop_requested() || Clock::now() < heard_at_ + every_) continue;
    heard_at_ = Clock::now();
    std::fprintf(out_, "weft: %s, %.0f s\n", what_.c_str(),
                 std::chrono::duration<double>(heard_at_ - since_).count());
  }
}

double decode_rate(const Completion& completion) {
  const double seconds = completion.seconds - completion.first_token_s;
  if (completion.ids.size() < 2 || seconds <= 0) return 0;
  return static_cast<double>(completion.ids.size() - 1) / seconds;
}

}  // namespace weft

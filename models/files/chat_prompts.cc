#include "models/files/chat_prompts.h"

#include "kernels/check.h"
#include "models/encoder.h"
#include "models/files/tokenizer_files.h"

namespace weft {

namespace {

class ChatPrompts final : public PromptTokenizer {
 public:
  ChatPrompts(const std::string& folder, const ChatForm& form)
      : folder_(folder), form_(form), tokenizer_(open_byte_bpe(folder)) {
    if (form.keeps_after) after_ = tokenizer_.encode(std::string(form.after));
    if (form.padding.empty()) return;
    const std::vector<int32_t> ids = tokenizer_.encode(std::string(form.padding));
    if (ids.size() != 1)
      throw Error(ErrorKind::kModel, folder + ": the tokenizer has no token " +
                                         std::string(form.padding) + ", which fills up prompts");
    padding_ = hidden_id(ids[0]);
  }

  int64_t max_ids() const override { return form_.most_ids + std::ssize(after_); }
  int64_t unread_ids() const override { return form_.unread_ids; }
  int64_t padded_rows(int64_t rows) const override { return rows; }
  PromptTokens read(const std::string& prompt) const override {
    std::string text = std::string(form_.before) + prompt;
    if (!form_.keeps_after) text += form_.after;
    PromptTokens out{tokenizer_.encode(text), {}};
    const auto count = std::ssize(out.ids) + std::ssize(after_);
    if (count <= form_.unread_ids)
      throw Error(ErrorKind::kModel, folder_ + ": a prompt has " + std::to_string(count) +
                                         " ids with its template, and the model needs more than " +
                                         std::to_string(form_.unread_ids) +
                                         "; the tokenizer belongs to another model");
    if (count > max_ids()) {
      std::string lost = tokenizer_.decode({out.ids.begin() + form_.most_ids, out.ids.end()});
      if (lost.ends_with(form_.after)) lost.resize(lost.size() - form_.after.size());
      out.cut = PromptCut{count, max_ids(), lost};
      out.ids.resize(form_.most_ids);
    }
    out.ids.insert(out.ids.end(), after_.begin(), after_.end());
    if (!form_.padding.empty()) out.ids.resize(max_ids(), padding_);
    return out;
  }

 private:
  std::string folder_;
  ChatForm form_;
  ByteBpeTokenizer tokenizer_;
  std::vector<int32_t> after_;  // of keeps_after
  int32_t padding_ = 0;
};

}  // namespace

std::unique_ptr<PromptTokenizer> chat_prompts(const std::string& folder, const ChatForm& form) {
  return std::make_unique<ChatPrompts>(folder, form);
}

}  // namespace weft

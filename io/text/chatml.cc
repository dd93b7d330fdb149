#include "io/text/chatml.h"

#include <algorithm>

namespace weft {
namespace {

std::string_view opening(ChatRole role) {
  if (role == ChatRole::kSystem) return "<|im_start|>system\n";
  return role == ChatRole::kUser ? "<|im_start|>user\n" : "<|im_start|>assistant\n";
}

}  // namespace

std::vector<TextPart> chatml_prompt(std::span<const ChatTurn> turns, Thinking thinking) {
  std::vector<TextPart> parts;
  for (const ChatTurn& turn : turns) {
    parts.push_back({opening(turn.role)});
    parts.push_back({turn.content, AddedTokens::kAsText});
    parts.push_back({"<|im_end|>\n"});
  }
  parts.push_back({opening(ChatRole::kAssistant)});
  if (thinking == Thinking::kOff) parts.push_back({"<think>\n\n</think>\n\n"});
  return parts;
}

std::string_view without_thoughts(std::string_view reply) {
  constexpr std::string_view kEnd = "</think>";
  const size_t end = reply.rfind(kEnd);
  if (end == reply.npos) return reply;
  reply.remove_prefix(end + kEnd.size());
  reply.remove_prefix(std::min(reply.find_first_not_of('\n'), reply.size()));
  return reply;
}

}  // namespace weft

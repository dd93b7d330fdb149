#include "io/text/chat_template.h"

#include <algorithm>
#include <map>

#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMaxTemplate = size_t{64} << 10;

// Reads the parts of the file by name and drops comments.
std::map<std::string, std::string> read_parts(std::string_view text, const std::string& what) {
  std::map<std::string, std::string> parts;
  std::string* part = nullptr;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(end);
    if (content.starts_with("%%")) continue;
    const std::string at = what + ", line " + std::to_string(line);
    if (content.starts_with('%')) {
      const std::string name(content.substr(1, content.find_last_not_of(" \r\n")));
      bool known = false;
      for (const char* legal : {"system", "user", "assistant", "no_thinking", "end"})
        known = known || name == legal;
      if (!known)
        throw Error(ErrorKind::kModel, at + ": \"%" + name +
                                           "\" is no part of a chat template; legal: system, user, "
                                           "assistant, no_thinking, end");
      const auto [place, fresh] = parts.try_emplace(name);
      if (!fresh) throw Error(ErrorKind::kModel, at + ": the part %" + name + " is there twice");
      part = &place->second;
    } else if (part) {
      *part += content;
    } else {
      throw Error(ErrorKind::kModel, at + ": text stands before the first part");
    }
  }
  for (const char* needed : {"system", "user", "assistant"})
    if (!parts.contains(needed))
      throw Error(ErrorKind::kModel, what + ": the part %" + needed + " is missing");
  return parts;
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& what) {
  if (text.size() > kMaxTemplate)
    throw Error(ErrorKind::kModel, what + ": has " + std::to_string(text.size()) +
                                       " bytes, the limit is " + std::to_string(kMaxTemplate));
  auto parts = read_parts(text, what);
  const auto frame = [&](const std::string& name) {
    const std::string& part = parts[name];
    const std::string holder = "{" + name + "}";
    const size_t at = part.find(holder);
    if (at == part.npos || part.find(holder, at + 1) != part.npos)
      throw Error(ErrorKind::kModel,
                  what + ": the part %" + name + " must hold " + holder + " once");
    return Frame{part.substr(0, at), part.substr(at + holder.size())};
  };
  ChatTemplate chat;
  chat.system_ = frame("system");
  chat.user_ = frame("user");
  chat.assistant_ = frame("assistant");
  chat.no_thinking_ = parts["no_thinking"];
  const std::string& after = chat.assistant_.after;
  chat.end_of_turn_ = after.substr(0, after.find_last_not_of(" \r\n") + 1);
  if (chat.end_of_turn_.empty())
    throw Error(ErrorKind::kModel,
                what +
                    ": in the part %assistant, the token that ends a turn must follow "
                    "{assistant}");
  return chat;
}

const ChatTemplate& ChatTemplate::chatml() {
  static const ChatTemplate chat = parse(detail::kChatml, "io/text/chatml.txt");
  return chat;
}

const ChatTemplate::Frame& ChatTemplate::frame(ChatRole role) const {
  if (role == ChatRole::kSystem) return system_;
  return role == ChatRole::kUser ? user_ : assistant_;
}

std::vector<TextPart> ChatTemplate::prompt(std::span<const ChatTurn> turns,
                                           Thinking thinking) const {
  std::vector<TextPart> parts;
  for (const ChatTurn& turn : turns) {
    parts.push_back({frame(turn.role).before});
    parts.push_back({turn.content, AddedTokens::kAsText});
    parts.push_back({frame(turn.role).after});
  }
  parts.push_back({assistant_.before});
  if (thinking == Thinking::kOff) parts.push_back({no_thinking_});
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

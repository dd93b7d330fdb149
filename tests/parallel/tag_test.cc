// Tests that tags tell messages apart.
#include "parallel/tag.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace weft::test {
namespace {

TEST(Tag, BitsTellEveryFieldApart) {
  const Tag base{.kind = Payload::kHalo, .pass = {.branch = 1, .step = 3}, .layer = 5, .hop = 7};
  std::vector<TagBits> all{base.bits(2), base.bits(3), base.bits(2, 1)};
  const auto with = [&](const std::function<void(Tag&)>& change) {
    Tag tag = base;
    change(tag);
    all.push_back(tag.bits(2));
  };
  with([](Tag& tag) { tag.kind = Payload::kFrames; });
  with([](Tag& tag) { tag.layer = 6; });
  with([](Tag& tag) { tag.topic = Topic::kText; });
  with([](Tag& tag) { tag.hop = 8; });
  for (int Pass::*field :
       {&Pass::prompt, &Pass::model, &Pass::branch, &Pass::segment, &Pass::step, &Pass::micro})
    with([&](Tag& tag) { ++(tag.pass.*field); });
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(tag_text(base.bits(2)), "halo step 3 branch 1 layer 5 hop 7 group 2");
  EXPECT_EQ(tag_text(Tag{.pass = {.prompt = 4, .segment = 9}}.bits(0, 7)),
            "control step 0 prompt 4 segment 9 layer 0 hop 0 group 0 job 7");
  EXPECT_EQ(to_string(Tag{.topic = Topic::kJob}), "control of job step 0 layer 0 hop 0 group 0");
  EXPECT_EQ(payload_of(base.bits(255, 65535)), Payload::kHalo);
}

TEST(Tag, TheLargestValueOfEveryFieldIsCarriedAndTheNextOneIsRefused) {
  const Tag largest{.kind = Payload::kFrames,
                    .pass = {65535, 1, 3, 65535, 65535, 65535},
                    .layer = (1 << 12) - 1,
                    .topic = static_cast<Topic>((1 << 5) - 1),
                    .hop = (1 << 15) - 1};
  EXPECT_EQ(
      tag_text(largest.bits(kMaxGroup, 65535)),
      "frames of ? step 65535 prompt 65535 model 1 branch 3 segment 65535 micro 65535 layer 4095 "
      "hop 32767 group 255 job 65535");
  EXPECT_DEATH((Tag{.hop = 1 << 15}.bits(0)), "hop");
  EXPECT_DEATH((Tag{.topic = static_cast<Topic>(1 << 5)}.bits(0)), "topic");
  EXPECT_DEATH((Tag{.layer = 1 << 12}.bits(0)), "layer");
  EXPECT_DEATH((Tag{}.bits(256)), "group");
  EXPECT_DEATH((Tag{}.bits(0, 1 << 16)), "job");
  const int first_refused[] = {1 << 16, 2, 4, 1 << 16, 1 << 16, 1 << 16};
  const char* names[] = {"prompt", "model", "branch", "segment", "step", "micro"};
  int at = 0;
  for (int Pass::*field :
       {&Pass::prompt, &Pass::model, &Pass::branch, &Pass::segment, &Pass::step, &Pass::micro}) {
    Tag tag, negative;
    tag.pass.*field = first_refused[at];
    negative.pass.*field = -1;
    EXPECT_DEATH(tag.bits(0), names[at]);
    EXPECT_DEATH(negative.bits(0), names[at]);
    ++at;
  }
}

// Whatever the hops that a collective counts, they are not those of another topic or of a plan.
TEST(Tag, MessagesOfTwoTopicsNeverMeet) {
  std::set<TagBits> bits;
  std::set<std::string> texts;
  for (int topic = 0; topic < static_cast<int>(Topic::kCount); ++topic)
    for (int hop = 0; hop < 1 << 15; hop = 2 * hop + 1) {
      const Tag tag{.topic = static_cast<Topic>(topic), .hop = hop};
      bits.insert(tag.bits(1));
      texts.insert(to_string(tag));
    }
  EXPECT_EQ(bits.size(), static_cast<size_t>(Topic::kCount) * 16);
  EXPECT_EQ(texts.size(), bits.size());
}

TEST(Tag, JobsAreNumberedInACircle) {
  const auto earlier = [](int job, int than) { return of_earlier_job(Tag{}.bits(1, job), than); };
  EXPECT_EQ(next_job(0), 1);
  EXPECT_EQ(next_job(65535), 1);
  EXPECT_TRUE(earlier(0, 1) && earlier(1, 2) && earlier(65535, 1) && earlier(40000, 65535));
  EXPECT_FALSE(earlier(0, 0) || earlier(2, 2) || earlier(2, 1) || earlier(1, 65535) ||
               earlier(1, 0) || earlier(65535, 40000));
  EXPECT_FALSE(of_earlier_job(Tag{}.bits(0), 5)) << "messages of the whole world have no job";
}

}  // namespace
}  // namespace weft::test

// Requests of OpenAI's clients as jobs: the names of parameters, forms, pictures and refusals.
#include <gtest/gtest.h>

#include "apps/generate/quality.h"
#include "apps/serve/jobs/route_answers.h"
#include "apps/serve/openai/client_request.h"

namespace weft {
namespace {

using nlohmann::json;

const ClientModel kWan{.ids = {"wan2.2-t2v-a14b", "sora-2"},
                       .name = "Wan2.2-T2V-A14B",
                       .has_teacache = true,
                       .boundary_ratio = 0.875};
const ClientModel kPainter{
    .ids = {"painter"}, .name = "Painter", .has_cfg = false, .most_pictures = 2, .hears = true};

ClientRequest read(const std::string& body, const ClientModel& model = kWan) {
  HttpRequest request;
  request.body = body;
  return client_request(client_fields(request), model);
}
json fields(const std::string& body, const ClientModel& model = kWan) {
  return json::parse(read(body, model).job.fields);
}
ClientRequest read_form(const Form& form, const ClientModel& model = kWan) {
  HttpRequest request;
  request.form = std::make_shared<const Form>(form);
  return client_request(client_fields(request), model);
}

// "CODE PARAM: message", or "" where the call is no fault.
template <class Call>
std::string fault_of_call(Call&& call) {
  try {
    call();
  } catch (const ClientFault& error) {
    return error.code + " " + error.param + ": " + error.what();
  }
  return "";
}
std::string fault(const std::string& body, const ClientModel& model = kWan) {
  return fault_of_call([&] { read(body, model); });
}

TEST(ClientRequest, TranslatesTheNamesThatClientsSend) {
  const ClientRequest request = read(
      R"({"prompt": "a kite", "model": "Sora-2", "seconds": "4", "size": "1280x720", "seed": 42,
          "num_inference_steps": "40", "guidance_scale": 4, "guidance_scale_2": 3, "flow_shift": 5,
          "negative_prompt": "rain", "fps": 24, "boundary_ratio": 0.875, "lora": "style:0.8",
          "user": "somebody", "metadata": {"a": "b"}, "background": "auto", "moderation": "low",
          "style": "vivid", "response_format": "url", "n": 1, "expand_prompt": false,
          "preset": "distill-4", "width": null})");
  EXPECT_EQ(json::parse(request.job.fields),
            json::parse(R"({"prompt": "a kite", "seconds": "4", "size": "1280x720", "seed": 42,
                            "steps": "40", "guidance_scale": 4, "guidance_scale_2": 3,
                            "flow_shift": 5, "negative_prompt": "rain", "fps": 24,
                            "lora": "style:0.8", "expand_prompt": false, "preset": "distill-4"})"));
  EXPECT_EQ(request.model, "sora-2");
  EXPECT_EQ(request.seconds, "4");
  const std::vector<std::pair<std::string, std::string>> renamed{{"steps", "num_inference_steps"}};
  EXPECT_EQ(request.job.renamed, renamed);
}

TEST(ClientRequest, MergesWhatExtraBodyAndExtraParamsHold) {
  EXPECT_EQ(fields(R"({"prompt": "a", "extra_body": {"seed": 1,
                       "extra_params": {"solver": "euler"}}, "size": "auto"})"),
            json::parse(R"({"prompt": "a", "seed": 1, "solver": "euler"})"));
  EXPECT_EQ(fault(R"({"prompt": "a", "seed": 1, "extra_params": {"seed": 2}})"),
            "invalid_request seed: seed is 1 and in extra_params 2; legal: one of the two");
  EXPECT_EQ(fault(R"({"prompt": "a", "extra_params": 3})"),
            "invalid_request extra_params: extra_params is 3, legal: an object");
}

TEST(ClientRequest, TwoNamesOfOneFieldMustAgree) {
  EXPECT_EQ(fields(R"({"prompt": "a", "true_cfg_scale": "4.0", "guidance_scale": 4})")
                .at("guidance_scale"),
            4);
  EXPECT_EQ(fault(R"({"prompt": "a", "true_cfg_scale": 4, "guidance_scale": 5})"),
            "invalid_request true_cfg_scale: true_cfg_scale asks for guidance_scale 4, but "
            "guidance_scale asks for 5; legal: one of the two");
  EXPECT_EQ(fault(R"({"prompt": "a", "true_cfg_scale": 4})", kPainter),
            "invalid_request true_cfg_scale: true_cfg_scale is 4, legal: none, as Painter has no "
            "classifier-free guidance");
  EXPECT_NE(fault(R"({"prompt": "a", "steps": 4, "num_inference_steps": 5})"), "");
}

TEST(ClientRequest, RefusesByNameWhatItDoesNotKnow) {
  EXPECT_EQ(
      fault(R"({"prompt": "a", "num_infrence_steps": 4})"),
      "unsupported_parameter num_infrence_steps: num_infrence_steps is no parameter of this "
      "request; did you mean num_inference_steps?; with \"ignore_unknown\": true it is ignored");
  EXPECT_EQ(fields(R"({"prompt": "a", "sparkle": 4, "ignore_unknown": true})"),
            json::parse(R"({"prompt": "a"})"));
  for (const char* hidden :
       {"id", "output", "output_path", "endless", "vae", "transformer", "image_sha256", "schema"})
    EXPECT_TRUE(fault(json{{"prompt", "a"}, {hidden, "x"}}.dump())
                    .starts_with(std::string("unsupported_parameter ") + hidden))
        << hidden;
  for (const char* impossible : {"mask", "video_reference", "control_reference"})
    EXPECT_TRUE(fault(json{{"prompt", "a"}, {impossible, "x"}, {"ignore_unknown", true}}.dump())
                    .starts_with(std::string("unsupported_parameter ") + impossible))
        << impossible;
}

TEST(ClientRequest, RefusesValuesThatAreNotLegal) {
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {R"({"prompt": "a", "user": 3})", "user"},
           {R"({"prompt": "a", "metadata": "x"})", "metadata"},
           {R"({"prompt": "a", "background": "transparent"})", "background"},
           {R"({"prompt": "a", "n": 2})", "n"},
           {R"({"prompt": "a", "quality": "best"})", "quality"},
           {R"({"prompt": "a", "quality": 1})", "quality"},
           {R"({"prompt": "a", "model": 1})", "model"},
           {R"({"prompt": "a", "boundary_ratio": 0.9})", "boundary_ratio"},
           {R"({"prompt": "a", "enable_teacache": "yes"})", "enable_teacache"},
           {R"({"prompt": "a", "expand_prompt": 1})", "expand_prompt"},
           {R"({"prompt": "a", "ignore_unknown": 1})", "ignore_unknown"},
           {R"({"seed": 1})", "prompt"},
           {R"({"prompt": null})", "prompt"},
           {"[]", ""},
           {"", ""},
           {R"({"prompt": "a", "prompt": "b"})", ""},
           {R"({"prompt": ")" + std::string("\xff") + R"("})", ""}})
    EXPECT_TRUE(fault(body).starts_with("invalid_request " + param + ":")) << fault(body);
}

TEST(ClientRequest, KnowsTheModelByItsIds) {
  EXPECT_EQ(read(R"({"prompt": "a"})").model, "wan2.2-t2v-a14b");
  EXPECT_EQ(read(R"({"prompt": "a", "model": "Wan2.2-T2V-A14B"})").model, "wan2.2-t2v-a14b");
  const std::string refused = R"({"prompt": "a", "model": "dall-e-3"})";
  EXPECT_EQ(fault(refused),
            "model_not_found model: model is 'dall-e-3', legal: wan2.2-t2v-a14b, sora-2");
  EXPECT_EQ(refusal_of(ClientFault("model_not_found", "model", "x")).status, 404);
  EXPECT_EQ(model_id("Wan 2.1 (T2V) / 14B!"), "wan-2.1-t2v-14b");
}

TEST(ClientRequest, QualityIsAMethodAndACache) {
  EXPECT_EQ(fields(R"({"prompt": "a", "quality": "lossless"})"),
            json::parse(R"({"prompt": "a", "method": "full", "cache": "none"})"));
  EXPECT_EQ(fields(R"({"prompt": "a", "quality": "balanced"})").at("cache"), "first-block:0.08");
  EXPECT_EQ(fields(R"({"prompt": "a", "quality": "auto"})"), json::parse(R"({"prompt": "a"})"));
  EXPECT_NE(fault(R"({"prompt": "a", "quality": "lossless", "cache": "teacache:0.1"})"), "");
  EXPECT_NE(fault(R"({"prompt": "a", "quality": "lossless", "enable_teacache": true})"), "");
  EXPECT_EQ(fields(R"({"prompt": "a", "enable_teacache": true})").at("cache"), "teacache:0.05");
  EXPECT_NE(fault(R"({"prompt": "a", "enable_teacache": true})", kPainter), "");
}

TEST(ClientRequest, TakesPicturesAsDataUrlsAlone) {
  const std::string url = "data:image/png;base64,AAAA";
  for (const json& value :
       {json(url), json{{"image_url", url}}, json{{"image_url", {{"url", url}}}},
        json::array({{{"image_url", url}}})}) {
    const ClientRequest request =
        read(json{{"prompt", "a"}, {"input_reference", value}}.dump(), kPainter);
    EXPECT_EQ(json::parse(request.job.fields).at("image"), url);
    EXPECT_EQ(request.job.renamed.at(0).second, "input_reference");
  }
  EXPECT_EQ(fields(json{{"prompt", "a"}, {"image_reference", {url, url}}}.dump(), kPainter)
                .at("last_image"),
            url);
  EXPECT_EQ(fields(json{{"prompt", "a"}, {"audio_reference", url}}.dump(), kPainter).at("audio"),
            url);
  const auto refused = [&](const json& value, const ClientModel& model) {
    return fault(json{{"prompt", "a"}, {"input_reference", value}}.dump(), model);
  };
  EXPECT_EQ(refused(url, kWan),
            "unsupported_parameter input_reference: input_reference is given, but Wan2.2-T2V-A14B "
            "draws from text alone; legal: none");
  for (const json& value : {json("https://example.org/a.png"), json("/etc/passwd"), json("data"),
                            json("file:///etc/passwd"), json{{"file_id", "file_1"}}, json(3),
                            json::object(), json::array({url, url, url})})
    EXPECT_TRUE(refused(value, kPainter).starts_with("invalid_request input_reference:")) << value;
  EXPECT_TRUE(fault(json{{"prompt", "a"}, {"last_image", url}}.dump())
                  .starts_with("unsupported_parameter last_image:"));
  EXPECT_NE(fault(json{{"prompt", "a"}, {"input_reference", url}, {"image", url}}.dump(), kPainter),
            "");
}

TEST(ClientRequest, ReadsForms) {
  const ClientRequest request =
      read_form({{.name = "prompt", .text = "a kite"},
                 {.name = "extra_body[num_inference_steps]", .text = "4"},
                 {.name = "metadata[a]", .text = "b"},
                 {.name = "sigmas[]", .text = "1"},
                 {.name = "sigmas[]", .text = "0.5"},
                 {.name = "extra_params", .text = R"({"round_frames": "true"})"},
                 {.name = "ignore_unknown", .text = "true"},
                 {.name = "input_reference", .file = "/tmp/x.bin", .file_name = "../../a.png"}},
                kPainter);
  EXPECT_EQ(json::parse(request.job.fields),
            json::parse(R"({"prompt": "a kite", "steps": "4", "sigmas": "1,0.5",
                            "round_frames": true})"));
  const std::vector<std::pair<std::string, std::string>> files{{"image", "/tmp/x.bin"}};
  EXPECT_EQ(request.job.files, files);

  const auto refused = [](const Form& form) {
    return fault_of_call([&] { read_form(form, kPainter); });
  };
  EXPECT_EQ(
      refused({{.name = "prompt", .text = "a"}, {.name = "mask", .file = "/tmp/m"}}).substr(0, 27),
      "unsupported_parameter mask:");
  EXPECT_NE(refused({{.name = "prompt", .file = "/tmp/m"}}), "");
  EXPECT_NE(refused({{.name = "prompt", .text = "\xff"}}), "");
  EXPECT_NE(refused({{.name = "prompt", .text = "a"}, {.name = "prompt[b]", .text = "c"}}), "");
  for (const char* name : {"", "[a]", "a[", "a]b[", "a[b]c", "a[1][2][3][4][5][6][7][8]"})
    EXPECT_NE(refused({{.name = "prompt", .text = "a"}, {.name = name, .text = "c"}}), "") << name;
}

TEST(Qualities, AreNamedOnce) {
  for (const Quality& quality : qualities()) {
    EXPECT_EQ(find_quality(quality.name), &quality) << quality.name;
    EXPECT_EQ(quality.method == nullptr, quality.cache == nullptr) << quality.name;
  }
  EXPECT_EQ(find_quality("best"), nullptr);
}

}  // namespace
}  // namespace weft

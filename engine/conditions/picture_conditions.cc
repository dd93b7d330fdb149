#include "engine/conditions/picture_conditions.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/conditions/video_encoder.h"
#include "engine/parts/seams.h"
#include "io/picture/picture_pixels.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

Tensor signed_pixels(const Frame& frame) {
  Tensor out(DType::kF32, {3, frame.height, frame.width});
  picture_pixels(frame, PixelRange::kSigned, out);
  return out;
}

}  // namespace

Conditions PictureConditions::conditions() const {
  Conditions out{.image = rows.view(), .channels = channels.view(), .reference = reference.view()};
  for (const Tensor& latent : references) {
    const TensorView view = latent.view();
    out.references.push_back(view.reshape({view[0], view[2], view[3]}));
  }
  return out;
}

Tensor clip_picture(const GivenPicture& picture, PictureFit fit, int64_t width, int64_t height) {
  if (!picture.pixels)
    return signed_pixels(fit_picture(read_given(picture, "the picture"), static_cast<int>(width),
                                     static_cast<int>(height), fit));
  const TensorView from = *picture.pixels;
  if (from.rank != 3 || from[0] != 3 || from[1] != height || from[2] != width)
    throw Error(ErrorKind::kUsage, "the picture is " + from.to_string_shape() + ", legal: [3, " +
                                       std::to_string(height) + ", " + std::to_string(width) +
                                       "], the clip's size");
  Tensor out(DType::kF32, from.shape());
  for (int64_t i = 0; i < from.count(); ++i) out.as<float>()[i] = 2 * from.as<float>()[i] - 1;
  return out;
}

namespace {

// The whole picture, 8 bits a value.
Frame whole_picture(const GivenPicture& picture) {
  if (!picture.pixels) return read_given(picture, "the picture");
  const TensorView from = *picture.pixels;
  Frame out(static_cast<int>(from[2]), static_cast<int>(from[1]));
  const int64_t plane = from[1] * from[2];
  for (int64_t i = 0; i < from.count(); ++i)
    out.rgb[i % plane * 3 + i / plane] =
        static_cast<uint8_t>(std::lround(std::clamp(from.as<float>()[i], 0.0f, 1.0f) * 255));
  return out;
}

}  // namespace

std::vector<const GivenPicture*> pictures_of(const Request& request) {
  std::vector<const GivenPicture*> pictures;
  for (const GivenPicture* picture : {&request.image, &request.last_image})
    if (picture->given()) pictures.push_back(picture);
  for (const GivenPicture& picture : request.references) pictures.push_back(&picture);
  return pictures;
}

namespace {

// Names a reference picture. Clients of a server see no folder of it.
std::string named_reference(const GivenPicture& picture) {
  return "reference is '" + std::filesystem::path(picture.path).filename().string() + "'";
}

// Refuses a reference picture of a size that the model does not take.
void check_reference(const GivenPicture& picture, const ModelDirectory& model) {
  const PictureConditioning& form = model.pictures;
  const auto [width, height] = picture.size();
  const auto shortest = std::min(width, height), longest = std::max(width, height);
  const bool is_thin = form.most_aspect > 0 && static_cast<double>(longest) >
                                                   form.most_aspect * static_cast<double>(shortest);
  if (shortest >= form.least_side && !is_thin) return;
  throw Error(ErrorKind::kUsage, named_reference(picture) + ", a picture of " +
                                     std::to_string(width) + "x" + std::to_string(height) +
                                     ", legal: sides of at least " +
                                     std::to_string(form.least_side) + " pixels, one at most " +
                                     shown(form.most_aspect) + " times as long as the other");
}

void check_references(const Request& request, const ModelDirectory& model) {
  const PictureConditioning& form = model.pictures;
  const std::string& name = model.defaults.name;
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kUsage, message); };
  if (form.form != PictureForm::kReferences) {
    if (!request.references.empty())
      refuse(named_reference(request.references.front()) + ", but " + name +
             " reads no reference pictures; legal: " + (form.reads_any() ? "image" : "no picture"));
    return;
  }
  for (const GivenPicture* picture : {&request.image, &request.last_image})
    if (picture->given())
      refuse((picture == &request.image ? "image is '" : "last_image is '") + picture->path +
             "', but " + name + " takes pictures as references alone; legal: reference");
  if (std::ssize(request.references) > form.most)
    refuse("reference is given " + std::to_string(request.references.size()) +
           " times, legal: 0 ... " + std::to_string(form.most));
  for (const GivenPicture& picture : request.references) check_reference(picture, model);
  if (!request.references.empty() && request.image_fit != PictureFit{})
    refuse("image_fit is given, but " + name + " has rules of its own for references; legal: none");
}

}  // namespace

Request with_clip_size(const Request& request, const ModelDirectory& model, int64_t multiple) {
  Request out = request;
  if (request.width > 0 || request.height > 0) return out;
  if (model.pictures.form == PictureForm::kReferences && !request.references.empty()) {
    check_reference(request.references.front(), model);
    const auto size = reference_size_of(model, request.references.front()).cut;
    out.width = size[0];
    out.height = size[1];
    return out;
  }
  const GivenPicture& picture = request.image;
  if (picture.width == 0 || picture.height == 0 || !model.pictures.clip_size) return out;
  const auto size = model.pictures.clip_size(
      picture.width, picture.height, model.defaults.width * model.defaults.height, multiple);
  out.width = size[0];
  out.height = size[1];
  return out;
}

void validate_pictures(const Request& request, const ModelDirectory& model) {
  const PictureConditioning& form = model.pictures;
  const std::string& name = model.defaults.name;
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kUsage, message); };
  const auto described = [](const GivenPicture& picture) { return "'" + picture.path + "'"; };
  check_references(request, model);
  if (form.form == PictureForm::kReferences) return;
  const auto given = static_cast<int>(pictures_of(request).size());
  if (given > 0 && !form.reads_any())
    refuse("image is " + described(request.image.given() ? request.image : request.last_image) +
           ", but " + name + " makes its videos from text alone; legal: no picture");
  if (request.last_image.given() && !request.image.given())
    refuse("last_image is " + described(request.last_image) +
           ", and there is no first picture; legal with it: image");
  if (given > form.most)
    refuse(
        "last_image is " + described(request.last_image) + ", but " + name +
        (form.form == PictureForm::kReference ? " shows one picture" : " begins with a picture") +
        " and does not end with one; legal: image alone");
  if (given < form.least)
    refuse(name + " makes a video from " +
           (form.least > 1 ? "its first and its last picture; legal: image and last_image"
                           : "a picture; legal: image"));
  if (given > 1 && request.frames < 2)
    refuse("last_image is " + described(request.last_image) +
           ", and a clip of one frame has no last one; legal: more frames");
  if (given > 0 && request.method->long_videos())
    refuse("--method is '" + to_string(request.method) +
           "', whose videos are longer than a clip, and " + name +
           " was trained with a picture at the beginning of a clip; legal with pictures: full");
}

void check_image_encoder(const Request& request, const ModelDirectory& model,
                         const TensorView& given_rows) {
  if (pictures_of(request).empty() || model.expert(0).traits().image_columns == 0) return;
  if (!given_rows && !model.image_model)
    throw Error(ErrorKind::kModel,
                model.path +
                    "/model_index.json: the pipeline has no image_encoder, whose rows of a picture "
                    "the transformer reads");
}

PictureEncoder::PictureEncoder(const Rank& rank, const JobFacts& facts,
                               const TensorView& given_rows)
    : stream_(rank.stream),
      arena_(rank.arena),
      parts_(rank.parts()),
      placement_(rank.placement),
      facts_(facts),
      request_(facts.request),
      given_rows_(given_rows),
      form_(parts_.directory().pictures),
      pictures_(pictures_of(facts.request)),
      shape_(facts.latent) {}

int64_t PictureEncoder::latent_frames() const {
  return form_.form == PictureForm::kChannels ? shape_[1] : 1;
}

int PictureEncoder::pieces() const {
  const bool encodes_rows = parts_.traits().image_columns > 0 && !given_rows_;
  const bool apart = form_.form == PictureForm::kReferences;
  return static_cast<int>((apart ? std::ssize(pictures_) : latent_frames()) +
                          (encodes_rows ? std::ssize(pictures_) : 0));
}

bool PictureEncoder::encodes() const {
  const auto has = [this](int64_t rows) { return placement_.band(rows).size() > 0; };
  if (form_.form != PictureForm::kReferences) return has(shape_[2]);
  return std::ranges::any_of(facts_.references, [&](const auto& size) { return has(size[0]); });
}

Tensor PictureEncoder::new_rows() const {
  const int64_t columns = parts_.traits().image_columns;
  if (columns == 0) return {};
  const auto& encoder = parts_.directory().image_model;
  const int64_t rows = given_rows_ ? given_rows_[0]
                       : encoder   ? encoder->traits().rows * std::ssize(pictures_)
                                   : parts_.traits().image_rows;
  return {DType::kF32, {rows, columns}, stream_.device()};
}

PictureConditions PictureEncoder::blank() const {
  const auto [channels, frames, height, width] = shape_;
  PictureConditions out{.rows = new_rows()};
  if (form_.form == PictureForm::kChannels)
    out.channels =
        Tensor(DType::kF32, {form_.given_channels, frames, height, width}, stream_.device());
  else if (form_.form == PictureForm::kReference)
    out.reference = Tensor(DType::kF32, {channels, 1, height, width}, stream_.device());
  else if (form_.form == PictureForm::kReferences)
    for (const auto& [rows, columns] : facts_.references)
      out.references.emplace_back(DType::kF32, std::array<int64_t, 4>{channels, 1, rows, columns},
                                  stream_.device());
  else
    out.given_frames = latent_frames();
  return out;
}

PictureConditions PictureEncoder::encode(const std::function<void(int pieces)>& done) {
  int count = 0;
  const auto next = [&] { done(++count); };
  PictureConditions out{.rows = encode_rows(next)};
  if (form_.form == PictureForm::kReferences) {
    out.references = encode_references(next);
    return out;
  }
  Tensor encoded = on_host(stream_, encode_video(next));
  if (form_.form == PictureForm::kFirstFrame) {
    out.frames = std::move(encoded);
    out.given_frames = latent_frames();
    return out;
  }
  if (form_.form == PictureForm::kReference) {
    out.reference = on_device(stream_, std::move(encoded));
    return out;
  }
  Tensor channels(DType::kF32, {form_.given_channels, shape_[1], shape_[2], shape_[3]},
                  host_stream(stream_).device());
  if (!is_dry_run(stream_))
    form_.give_channels(static_cast<int>(pictures_.size()), encoded, channels);
  encoded = {};
  out.channels = on_device(stream_, std::move(channels));
  return out;
}

Tensor PictureEncoder::encode_rows(const std::function<void()>& next) {
  Tensor rows = new_rows();
  if (!rows) return rows;
  if (given_rows_) {
    make_on_host(stream_, rows, [&](const TensorView& to) {
      std::copy_n(given_rows_.as<float>(), given_rows_.count(), to.as<float>());
    });
    return rows;
  }
  if (!parts_.directory().image_model) return rows;  // of a plan
  const ImageEncoderTraits& traits = parts_.directory().image_model->traits();
  const Tag tag{.kind = Payload::kText, .topic = Topic::kPictures};
  if (placement_.encodes_text(traits)) encode_rows(rows, next);
  placement_.share_encoded(stream_, traits, tag, rows);
  return rows;
}

void PictureEncoder::encode_rows(const TensorView& rows, const std::function<void()>& next) {
  const ImageEncoderTraits& traits = parts_.directory().image_model->traits();
  const int64_t size = traits.size, per_picture = traits.rows;
  const ClipPreprocessing preprocessing = read_clip_preprocessing(
      parts_.directory().image_processor + "/preprocessor_config.json", static_cast<int>(size));
  const ImageEncoder& encoder = parts_.image_encoder(stream_);
  EncoderSeams seams(placement_);
  for (int64_t i = 0; i < std::ssize(pictures_); ++i) {
    const Arena::Scope scope(arena_);
    const TensorView pixels = arena_.alloc(DType::kF32, {3, size, size});
    const Pass pass{.branch = static_cast<int>(i), .segment = 1};
    const bool has_pixels = pictures_[i]->pixels != nullptr;
    if (placement_.root() || has_pixels)
      make_on_host(stream_, pixels, [&](const TensorView& to) {
        clip_pixels(whole_picture(*pictures_[i]), preprocessing, to);
      });
    if (!has_pixels) {
      const Tag tag{.kind = Payload::kFrames, .pass = pass, .topic = Topic::kPictures, .hop = 1};
      placement_.share_with_encoders(stream_, traits, tag, pixels);
    }
    Context context = seams.context(stream_, arena_, pass, traits, per_picture);
    encoder.encode(context, pixels, rows.slice(0, i * per_picture, per_picture));
    next();
  }
  parts_.done_with_pictures();
}

// The pixels of a picture that the model sees: the whole clip's, or a reference's own.
Frame PictureEncoder::fitted(const GivenPicture& picture) const {
  Frame whole = whole_picture(picture);
  if (form_.form != PictureForm::kReferences)
    return fit_picture(whole, static_cast<int>(request_.width), static_cast<int>(request_.height),
                       request_.image_fit);
  const auto [size, cut] = reference_size_of(parts_.directory(), picture);
  const int width = static_cast<int>(size[0]), height = static_cast<int>(size[1]);
  if (whole.width != width || whole.height != height)
    whole = resized(whole, width, height, ResizeFilter::kLanczos);
  return centre_crop(whole, 0, static_cast<int>(cut[0]), static_cast<int>(cut[1]),
                     ResizeFilter::kLanczos);
}

// Returns a picture [3, H, W] of the size of a latent {h, w} on the ranks that encode rows of it.
// The root alone reads its file.
Tensor PictureEncoder::picture_here(int index, const std::array<int64_t, 2>& latent) {
  const GivenPicture& picture = *pictures_[index];
  const int64_t scale = parts_.vae_model().traits.spatial_factor;
  const int64_t height = latent[0] * scale, width = latent[1] * scale;
  const bool encodes = placement_.band(latent[0]).size() > 0, is_dry = is_dry_run(stream_);
  Frame frame;
  if (!picture.pixels) {
    frame = placement_.root() && !is_dry ? fitted(picture)
                                         : Frame(static_cast<int>(width), static_cast<int>(height));
    const Tag tag{.kind = Payload::kFrames, .pass = {.micro = index}, .topic = Topic::kPictures};
    placement_.share_with_bands(
        stream_, latent[0], tag,
        {frame.rgb.data(), DType::kU8, {static_cast<int64_t>(frame.rgb.size())}});
  }
  if (!encodes) return {};
  if (is_dry) return {DType::kF32, {3, height, width}, host_stream(stream_).device()};
  if (!picture.pixels) return signed_pixels(frame);
  return form_.form == PictureForm::kReferences
             ? signed_pixels(fitted(picture))
             : clip_picture(picture, request_.image_fit, width, height);
}

// Returns the encoded video [C, f, h, w], normalised, on every rank.
Tensor PictureEncoder::encode_video(const std::function<void()>& next) {
  VideoEncoder encoder(stream_, arena_, placement_, parts_.vae_model().traits,
                       {shape_[0], latent_frames(), shape_[2], shape_[3]});
  const Range rows = encoder.rows();
  const int64_t last = form_.form == PictureForm::kChannels ? request_.frames - 1 : 0;
  std::vector<Tensor> pictures;  // [3, H, W]
  for (int i = 0; i < static_cast<int>(pictures_.size()); ++i)
    pictures.push_back(picture_here(i, {shape_[2], shape_[3]}));
  const auto picture_at = [&](int64_t frame) -> const Tensor* {
    if (frame == 0) return &pictures.front();
    return pictures.size() > 1 && frame == last ? &pictures.back() : nullptr;
  };
  const auto fill = [&](int64_t first, const TensorView& video) {
    make_on_host(stream_, video, [&](const TensorView& to) {
      std::fill_n(to.as<float>(), to.count(), 0.0f);
      Stream host = host_stream(stream_);
      for (int64_t i = 0; i < to[0]; ++i)
        if (const Tensor* picture = picture_at(first + i))
          copy(host, picture->view().slice(1, rows.begin, rows.size()), to.select(0, i));
    });
  };
  Tensor own;
  if (rows.size() > 0)
    own = encoder.encode_rows(parts_.vae_encoder(stream_), "the encoded picture", fill, next);
  parts_.done_with_pictures();
  return encoder.join(std::move(own));
}

// Returns the encoded references [C, 1, h, w], normalised, on the device of every rank.
std::vector<Tensor> PictureEncoder::encode_references(const std::function<void()>& next) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < facts_.references.size(); ++i) {
    const auto [height, width] = facts_.references[i];
    VideoEncoder encoder(stream_, arena_, placement_, parts_.vae_model().traits,
                         {shape_[0], 1, height, width});
    const Range rows = encoder.rows();
    const Tensor picture = picture_here(static_cast<int>(i), facts_.references[i]);
    const auto fill = [&](int64_t, const TensorView& video) {
      make_on_host(stream_, video, [&](const TensorView& to) {
        Stream host = host_stream(stream_);
        copy(host, picture.view().slice(1, rows.begin, rows.size()), to.select(0, 0));
      });
    };
    Tensor own;
    if (rows.size() > 0)
      own = encoder.encode_rows(parts_.vae_encoder(stream_), "a reference picture", fill, next);
    out.push_back(encoder.join(std::move(own)));
  }
  parts_.done_with_pictures();
  return out;
}

}  // namespace weft

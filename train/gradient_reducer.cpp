#include <greyhound/train/gradient_reducer.h>

#include <greyhound/kernels/elementwise.h>

namespace greyhound {

void GradientReducer::plan(ArenaPlan& plan, std::int64_t block_elements, std::int64_t ranks) {
  planned_ = ranks > 1 && settings_.reduce_dtype != DType::fp32;
  if (planned_) wire_slot_ = plan.add("reduction", "gradients_on_the_wire", settings_.reduce_dtype, {block_elements});
}

void GradientReducer::bind(const Arena& arena, const Tensor& gradients) {
  gradients_ = gradients;
  if (planned_) wire_ = arena[wire_slot_];
}

GradientHook GradientReducer::hook(const Context& context, Communicator& communicator) {
  sent_ = complete_ = 0;
  if (communicator.size() == 1) return {};
  return [this, &context, &communicator](GradientRange range) {
    require(range.begin == complete_, "gradients: the range from ", range.begin, " follows the one that ended at ",
            complete_);
    complete_ = range.end;
    const std::int64_t bytes = (complete_ - sent_) * static_cast<std::int64_t>(sizeof(float));
    if (bytes >= settings_.bucket_mb << 20) send(context, communicator);
  };
}

void GradientReducer::send(const Context& context, Communicator& communicator) {
  const Shape bucket = {complete_ - sent_};
  if (bucket.elements() == 0) return;
  const Tensor values = gradients_.slice(sent_, bucket);
  if (wire_) {
    const Tensor rounded = wire_.slice(sent_, bucket);
    cast(context, {values, rounded});
    communicator.start_all_reduce(context, rounded);
  } else {
    communicator.start_all_reduce(context, values);
  }
  sent_ = complete_;
}

void GradientReducer::finish(const Context& context, Communicator& communicator) {
  if (communicator.size() == 1) return;
  require(complete_ == gradients_.elements(), "gradients: ", complete_, " of ", gradients_.elements(),
          " were reported complete");
  send(context, communicator);
  communicator.join(context);
  if (wire_) cast(context, {wire_, gradients_});
}

}  // namespace greyhound

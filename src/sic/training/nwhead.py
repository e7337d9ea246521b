"""The training step of the NW-Head: queries are classified by the random supports of their batch."""

import torch
from torch import Tensor

from sic.methods import NWHead
from sic.training.batches import Batch
from sic.training.cases import CaseTraining


class NWHeadTraining(CaseTraining):
    """Gradients go through queries and supports."""

    classifier: NWHead

    def training_step(self, batch: Batch, index: int) -> Tensor:
        classifier, number = self.classifier, len(batch.targets)
        pooled = classifier.backbone(self.prepared(torch.cat([batch.queries, batch.supports])))
        with torch.autocast(self.device.type, enabled=False):
            latents = classifier.encoder.project(self.whole(pooled.float(), batch))
            log_weights = classifier.log_weights(latents[:number], latents[number:])
            loss = self.loss(classifier.logits(log_weights, batch.support_classes), batch.targets)
        return self.noted(loss, index)
